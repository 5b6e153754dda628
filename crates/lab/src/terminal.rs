//! Lines on stdout and stderr that do not panic when nobody can read them.

use std::io::{self, Write};

/// A reader that has had enough (`| head`) is not an error.
pub fn print(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// A line on stdout.
#[macro_export]
macro_rules! say {
    ($($text:tt)*) => {
        $crate::terminal::print(&format!("{}\n", format_args!($($text)*)))
    };
}

/// A line on stderr.
#[macro_export]
macro_rules! complain {
    ($($text:tt)*) => {{
        use ::std::io::Write as _;
        let _ = writeln!(::std::io::stderr(), $($text)*);
    }};
}

pub use {complain, say};
