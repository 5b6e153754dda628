//! Marked lines: `//= FLAW words` or `//= CURE words`, alone on the line above the one that they
//! mark; `--=` in Lua and SQL.

use serde::Serialize;
use utoipa::ToSchema;

/// The longest excerpt. All of them travel to the lab's page.
pub const MOST_LINES: usize = 13;
/// How much of a longer function is shown before its mark.
const LINES_BEFORE: usize = 6;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = MarkKind)]
pub enum Kind {
    /// The line that sells wrong.
    Flaw,
    /// The line that prevents it.
    Cure,
}

/// The lines around a mark: its function, or a part of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Excerpt {
    pub kind: Kind,
    pub words: String,
    /// From the root of the repository.
    pub file: &'static str,
    /// The line of the file with which `code` begins.
    pub first_line: usize,
    /// The line above the one that is marked.
    pub marked_line: usize,
    pub code: String,
}

impl Excerpt {
    /// The lines of the file that are shown.
    pub fn lines(&self) -> std::ops::Range<usize> {
        self.first_line..self.first_line + self.code.lines().count()
    }
}

/// A source that has marks.
#[derive(Debug, Clone, Copy)]
pub struct Source {
    /// From the root of the repository.
    pub file: &'static str,
    pub text: &'static str,
}

/// An excerpt for each mark, in the order of the file.
pub fn excerpts(source: Source) -> Vec<Excerpt> {
    let lines: Vec<&str> = source.text.lines().collect();
    let marked = lines.iter().enumerate().filter_map(|(at, line)| Some((at, mark_of(line)?)));
    let excerpt = |(at, (kind, words)): (usize, (Kind, &str))| {
        let shown = around(&lines, at);
        // Where two marks stand above one line, both mark that line.
        let next = (at + 1..lines.len()).find(|next| mark_of(lines[*next]).is_none());
        Excerpt {
            kind,
            words: words.to_owned(),
            file: source.file,
            first_line: shown.start + 1,
            marked_line: next.unwrap_or(at + 1),
            code: without_indent(&lines[shown]),
        }
    };
    marked.map(excerpt).collect()
}

fn mark_of(line: &str) -> Option<(Kind, &str)> {
    let line = line.trim_start();
    let mark = line.strip_prefix("//= ").or_else(|| line.strip_prefix("--= "))?;
    let (kind, words) = mark.split_once(' ')?;
    match kind {
        "FLAW" => Some((Kind::Flaw, words)),
        "CURE" => Some((Kind::Cure, words)),
        _ => None,
    }
}

/// The function around a line (in Lua: the file), or a window of it.
fn around(lines: &[&str], at: usize) -> std::ops::Range<usize> {
    let opens = |line: &str| line.trim_start().starts_with("fn ") || line.contains(" fn ");
    let start = (0..at).rev().find(|number| opens(lines[*number])).unwrap_or(0);
    let indent = lines[start].len() - lines[start].trim_start().len();
    let close = format!("{}}}", " ".repeat(indent));
    let end = (at..lines.len()).find(|number| lines[*number] == close);
    let end = end.map_or(lines.len(), |end| end + 1);
    if end - start <= MOST_LINES {
        return start..end;
    }
    let start = start.max(at.saturating_sub(LINES_BEFORE));
    let end = end.min(start + MOST_LINES);
    end.saturating_sub(MOST_LINES).max(start)..end
}

fn without_indent(lines: &[&str]) -> String {
    let full = lines.iter().filter(|line| !line.trim().is_empty());
    let indent = full.map(|line| line.len() - line.trim_start().len()).min().unwrap_or(0);
    let lines = lines.iter().map(|line| line.get(indent..).unwrap_or("").trim_end());
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_is_the_function_or_a_window_of_it() {
        let text = "\nimpl A {\n    fn a() {\n        one();\n        //= FLAW it is late\n\n\
                    \x20       two();\n    }\n}\n";
        let found = excerpts(Source { file: "a.rs", text });
        let code = "fn a() {\n    one();\n    //= FLAW it is late\n\n    two();\n}";
        let excerpt = Excerpt {
            kind: Kind::Flaw,
            words: "it is late".to_owned(),
            file: "a.rs",
            first_line: 3,
            marked_line: 5,
            code: code.to_owned(),
        };
        assert_eq!((found[0].lines(), &found[..]), (3..9, &[excerpt][..]));

        let text = "fn a() {\n    //= CURE one\n    //= FLAW two\n    b();\n}\n";
        let found = excerpts(Source { file: "a.rs", text });
        assert_eq!([found[0].marked_line, found[1].marked_line], [3, 3]);

        let many = "x\n".repeat(40);
        let text: &'static str = format!("{many}--= CURE in one step\n{many}").leak();
        let found = excerpts(Source { file: "a.lua", text });
        assert_eq!((found[0].kind, found[0].lines()), (Kind::Cure, 35..48));
        assert!(found[0].lines().contains(&found[0].marked_line));
    }
}
