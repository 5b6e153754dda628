//! Lines on stdout and stderr that do not panic when nobody can read them, and how long they are.

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

/// Code keeps its indent; what is too long for a line is broken anywhere.
pub fn pieces(line: &str, room: usize) -> Vec<String> {
    let letters: Vec<char> = line.chars().collect();
    if letters.is_empty() {
        return vec![String::new()];
    }
    letters.chunks(room).map(|piece| piece.iter().collect()).collect()
}

/// How many columns a letter takes: Chinese ones take two.
fn columns(letter: char) -> usize {
    if ('\u{1100}'..='\u{115f}').contains(&letter)
        || ('\u{2e80}'..='\u{a4cf}').contains(&letter)
        || ('\u{ac00}'..='\u{d7a3}').contains(&letter)
        || ('\u{f900}'..='\u{faff}').contains(&letter)
        || ('\u{fe30}'..='\u{fe6f}').contains(&letter)
        || ('\u{ff00}'..='\u{ff60}').contains(&letter)
    {
        2
    } else {
        1
    }
}

pub fn width_of(text: &str) -> usize {
    text.chars().map(columns).sum()
}

/// Breaks at spaces and between Chinese letters; what is too long for a line is broken anywhere.
pub fn wrapped(text: &str, room: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let (mut line, mut used) = (String::new(), 0);
    // Where the line can be broken: bytes, columns.
    let mut place: Option<usize> = None;
    for letter in text.chars() {
        let wide = columns(letter) == 2;
        if used + columns(letter) > room {
            let rest = match place.take() {
                Some(at) if at > 0 => line.split_off(at),
                _ => String::new(),
            };
            lines.push(line.trim_end().to_owned());
            line = rest.trim_start().to_owned();
            used = width_of(&line);
        }
        let closing = "，。；：、？！）》”".contains(letter);
        if wide && !closing {
            place = Some(line.len());
        }
        line.push(letter);
        used += columns(letter);
        if letter == ' ' || (wide && !"（《“".contains(letter)) {
            place = Some(line.len());
        }
    }
    if !line.trim().is_empty() || lines.is_empty() {
        lines.push(line.trim_end().to_owned());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_at_spaces_and_between_chinese_letters() {
        assert_eq!(wrapped("one two three", 8), ["one two", "three"]);
        assert_eq!(wrapped("锁的值人人相同", 6), ["锁的值", "人人相", "同"]);
        assert_eq!(wrapped("abcdefghij", 4), ["abcd", "efgh", "ij"]);
        for room in 4..40 {
            let text = "Alice 拿到锁，租期 300 毫秒，and a veryveryverylongwordindeed 开始。";
            for line in wrapped(text, room) {
                assert!(width_of(&line) <= room + 2, "{line}");
            }
        }
    }
}
