//! Lines on stdout and stderr that do not panic when nobody can read them, and how long they are.

use std::io::{self, Write};
use unicode_width::UnicodeWidthChar;

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

/// Breaks a line of code at the column; its indent stays.
pub fn pieces(line: &str, room: usize) -> Vec<String> {
    let letters: Vec<char> = line.chars().collect();
    if letters.is_empty() {
        return vec![String::new()];
    }
    letters.chunks(room).map(|piece| piece.iter().collect()).collect()
}

/// How many columns a letter takes: Chinese ones take two.
fn columns(letter: char) -> usize {
    letter.width().unwrap_or(0)
}

pub fn width_of(text: &str) -> usize {
    text.chars().map(columns).sum()
}

/// Breaks at spaces and between Chinese letters, and within a word that is longer than a line.
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

/// Columns as wide as their cells, those in `left` to the left, the others to the right. A row
/// may end early, with a cell of any length.
pub fn table<R: AsRef<[String]>>(rows: &[R], left: &[usize]) -> String {
    let columns = rows.first().map_or(0, |row| row.as_ref().len());
    let full = || rows.iter().map(AsRef::as_ref).filter(|row| row.len() == columns);
    let width = |at: usize| full().map(|row| width_of(&row[at])).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.as_ref().iter().enumerate().map(|(at, cell)| {
            let room = widths.get(at).copied().unwrap_or(0);
            let gap = " ".repeat(room.saturating_sub(width_of(cell)));
            if left.contains(&at) { format!("{cell}{gap}") } else { format!("{gap}{cell}") }
        });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
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

    #[test]
    fn columns_are_as_wide_as_what_is_in_them() {
        let rows =
            ["id,n", "long one,7", "x"].map(|row| row.split(',').map(str::to_owned).collect());
        let rows: [Vec<String>; 3] = rows;
        assert_eq!(table(&rows, &[0]), "id        n\nlong one  7\nx\n");
    }
}
