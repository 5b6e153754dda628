//! A timeline as text, at most 100 columns wide: a lane for each actor, what was sent and answered,
//! what the keys hold, who believes to hold the lock, and a strong mark where two do.

use super::{
    lesson::{Act, Kind, Lesson, Part},
    timeline::{Ending, Event, KeyState, Timeline},
};
use crate::{
    marks,
    strategy::{Language, Words},
};
use std::fmt::Write;

const WIDTH: usize = 100;
/// Columns of one lane.
const LANE: usize = 3;

/// How to write: in colours only where somebody sees them.
#[derive(Debug, Clone, Copy)]
pub struct Style {
    pub language: Language,
    pub colours: bool,
}

impl Style {
    fn paint(self, code: &str, text: &str) -> String {
        if self.colours && !text.is_empty() {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    fn say(self, en: &'static str, zh: &'static str) -> &'static str {
        Words::new(en, zh).say(self.language)
    }
}

const BOLD: &str = "1";
const DIM: &str = "2";
const RED: &str = "1;31";
const GREEN: &str = "1;32";
const BLUE: &str = "36";

/// All lessons, one after the other.
pub fn list(lessons: &[Lesson], style: Style) -> String {
    let mut text = String::new();
    for lesson in lessons {
        let head = format!("{}  {}", lesson.id, lesson.title(style.language));
        let _ = writeln!(text, "{}", style.paint(BOLD, &head));
        paragraph(&mut text, "     ", lesson.section("Failure", style.language));
        let options: Vec<&str> = lesson.options.iter().map(|option| option.name).collect();
        if !options.is_empty() {
            let label = style.say("options", "选项");
            let _ = writeln!(
                text,
                "     {}",
                style.paint(DIM, &format!("{label}: {}", options.join(", ")))
            );
        }
    }
    text
}

/// A whole play.
pub fn play(timeline: &Timeline, style: Style) -> String {
    let (lesson, language) = (timeline.lesson, style.language);
    let mut text = String::new();
    let head = format!("{}  {}", lesson.id, lesson.title(language));
    let _ = writeln!(text, "{}", style.paint(BOLD, &head));
    for (label, section) in [
        (style.say("Failure", "故障"), "Failure"),
        (style.say("Forced", "强迫手段"), "How it is forced"),
        (style.say("Cure", "解法"), "Cure"),
        (style.say("Source", "出处"), "Source"),
    ] {
        paragraph(&mut text, "  ", &format!("{label}: {}", lesson.section(section, language)));
    }
    if let Some(why) = timeline.recorded {
        let recorded = style.say("This is a recording.", "这是录制的演示，不是现场运行。");
        paragraph(&mut text, "  ", &format!("{recorded} {}", why.say(language)));
    }
    if timeline.repeats > 0 {
        let repeats = timeline.repeats;
        let en = format!("Played again {repeats} time(s): this process had stood still.");
        let zh = format!("本进程曾停顿，重演了 {repeats} 次。");
        paragraph(&mut text, "  ", if language == Language::En { &en } else { &zh });
    }
    text.push('\n');
    for (lane, actor) in lesson.cast.iter().enumerate() {
        let name = lesson.name_of(actor.id, language);
        let _ = writeln!(text, "  {} {name}", letter(lesson, lane));
    }
    for (number, (act, ending)) in lesson.acts.iter().zip(&timeline.endings).enumerate() {
        an_act(&mut text, timeline, number, (act, ending), style);
    }
    text
}

/// Its steps, its verdict, and the lines that decide.
fn an_act(
    text: &mut String,
    timeline: &Timeline,
    number: usize,
    (act, ending): (&Act, &Ending),
    style: Style,
) {
    let kind = match act.kind {
        Kind::Failure => style.say("failure", "故障"),
        Kind::Cure => style.say("cure", "解法"),
        Kind::FlawOfTheCure => style.say("flaw of the cure", "解法自身的缺陷"),
    };
    let (title, say) = act.words(timeline.lesson, style.language);
    let head = format!("{}. {title} ({kind})", number + 1);
    let _ = writeln!(text, "\n{}", style.paint(BOLD, &head));
    paragraph(text, "   ", say);
    text.push('\n');
    let mut before = None;
    for (index, event) in timeline.act(number) {
        step(text, timeline.lesson, index, event, before, style);
        before = Some(event);
    }
    let (mark, colour) = if ending.broken {
        (style.say("BROKEN", "失守"), RED)
    } else {
        (style.say("HELD", "守住"), GREEN)
    };
    let _ = writeln!(text, "   {}", style.paint(colour, &format!("=> {mark}")));
    paragraph(text, "      ", ending.why.say(style.language));
    for excerpt in act.excerpts(timeline.lesson, style.language) {
        marked(text, &excerpt, style);
    }
}

/// A mark with the code around it.
fn marked(text: &mut String, excerpt: &marks::Excerpt, style: Style) {
    let _ = writeln!(text, "\n   {}:{}", excerpt.file, excerpt.marked_line);
    paragraph(text, "      ", &excerpt.words);
    for (number, line) in excerpt.code.lines().enumerate() {
        let number = excerpt.first_line + number;
        let is_marked = number == excerpt.marked_line || number == excerpt.marked_line + 1;
        let colour = match (is_marked, excerpt.kind) {
            (true, marks::Kind::Flaw) => RED,
            (true, marks::Kind::Cure) => GREEN,
            (false, _) => DIM,
        };
        for piece in wrapped_code(line, WIDTH - 11) {
            let _ = writeln!(text, "   {number:>5}  {}", style.paint(colour, &piece));
        }
    }
}

/// Words and tables, as in the lesson on order numbers.
pub fn sections(sections: &[crate::order_numbers::SectionBody]) -> String {
    let mut text = String::new();
    for section in sections {
        let _ = writeln!(text, "{}", section.title);
        paragraph(&mut text, "  ", &section.text);
        let head = section.columns.iter().flatten().map(|title| (*title).to_owned());
        let cells = section.rows.iter().flatten().map(|row| {
            let shown =
                row.iter().map(|cell| cell.as_str().map_or(cell.to_string(), str::to_owned));
            shown.collect::<Vec<String>>()
        });
        let rows: Vec<Vec<String>> = [head.collect()].into_iter().chain(cells).collect();
        let width = |text: &str| text.chars().map(columns).sum::<usize>();
        let most = |column: usize| {
            let cells = rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| width(cell)).max().unwrap_or(0)
        };
        for row in &rows {
            let mut line = String::from(" ");
            for (column, cell) in row.iter().enumerate() {
                line.push(' ');
                line.push_str(cell);
                line.push_str(&" ".repeat(most(column) - width(cell) + 1));
            }
            let _ = writeln!(text, "{}", line.trim_end());
        }
        if let Some(code) = section.code {
            let _ = writeln!(text, "  {code}");
        }
        text.push('\n');
    }
    text
}

fn letter(lesson: &Lesson, lane: usize) -> String {
    let actor = &lesson.cast[lane];
    let first: String = lesson.name_of(actor.id, Language::En).chars().take(1).collect();
    match actor.part {
        Part::Client => first,
        // Several servers are told apart by their digit.
        _ => {
            let digit = actor.id.chars().last().filter(char::is_ascii_digit);
            digit.map_or(first, String::from)
        }
    }
}

/// The lanes beside a step: who acts (●), whom it goes to (○), who believes to hold the lock (┃).
fn lanes(lesson: &Lesson, event: &Event, acts: bool, style: Style) -> String {
    let mut lanes = String::new();
    for actor in lesson.cast {
        let believes = event.believers.contains(&actor.id);
        let mark = match (acts && actor.id == event.actor, acts && event.to == Some(actor.id)) {
            (true, _) => "●",
            (_, true) => "○",
            _ if believes => "┃",
            _ => "·",
        };
        let colour = match (believes, event.is_overlap()) {
            (true, true) => RED,
            (true, false) => GREEN,
            _ => DIM,
        };
        lanes.push_str(&style.paint(colour, mark));
        lanes.push_str(&" ".repeat(LANE - 1));
    }
    lanes
}

fn step(
    text: &mut String,
    lesson: &Lesson,
    index: usize,
    event: &Event,
    before: Option<&Event>,
    style: Style,
) {
    let head: String =
        (0..lesson.cast.len()).map(|lane| format!("{:<LANE$}", letter(lesson, lane))).collect();
    if before.is_none() {
        let _ = writeln!(text, "            {}", style.paint(DIM, &head));
    }
    let room = WIDTH - 12 - lesson.cast.len() * LANE;
    for (number, (line, colour)) in said_of(event, before, room, style).iter().enumerate() {
        let gutter = if number == 0 {
            format!("{:>3} {:>6.0}  ", index + 1, event.t_ms)
        } else {
            " ".repeat(12)
        };
        let lanes = lanes(lesson, event, number == 0, style);
        let _ = writeln!(text, "{}{lanes}{}", style.paint(DIM, &gutter), style.paint(colour, line));
    }
}

/// The lines of a step, with their colours.
fn said_of(
    event: &Event,
    before: Option<&Event>,
    room: usize,
    style: Style,
) -> Vec<(String, &'static str)> {
    let mut lines: Vec<(String, &str)> = Vec::new();
    let mut say = |text: &str, colour| {
        lines.extend(wrapped(text, room).into_iter().map(|line| (line, colour)));
    };
    say(&event.command.clone().unwrap_or_else(|| format!("({})", event.step)), BLUE);
    if let Some(reply) = &event.reply {
        say(&format!("→ {reply}"), BLUE);
    }
    if event.is_staged {
        say(style.say("(staged)", "（由舞台代演）"), DIM);
    }
    say(event.say.say(style.language), "0");
    for (key, state) in &event.keys {
        if before
            .and_then(|event| event.keys.get(key))
            .is_some_and(|same| is_as_before(same, state))
        {
            continue;
        }
        let held = match &state.value {
            None => style.say("no such key", "不存在").to_owned(),
            Some(value) => {
                let ttl = state.ttl_ms.map_or(String::new(), |ttl| format!(" ({ttl} ms)"));
                format!("{value}{ttl}")
            }
        };
        say(&format!("{key} = {held}"), DIM);
    }
    if event.is_overlap() {
        let two = style.say("TWO HOLD THE LOCK", "两个人同时持锁");
        say(&format!("!!! {two}: {}", event.believers.join(", ")), RED);
    }
    lines
}

/// A lease that only gets shorter is not news; one that was renewed is.
fn is_as_before(same: &KeyState, state: &KeyState) -> bool {
    let lease_only_ran = match (same.ttl_ms, state.ttl_ms) {
        (Some(before), Some(now)) => now <= before,
        (before, now) => before == now,
    };
    same.value == state.value && same.owner == state.owner && lease_only_ran
}

fn paragraph(text: &mut String, indent: &str, words: &str) {
    for line in wrapped(words, WIDTH - indent.len()) {
        let _ = writeln!(text, "{indent}{line}");
    }
}

/// Code keeps its indent; what is too long for a line is broken anywhere.
fn wrapped_code(line: &str, room: usize) -> Vec<String> {
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

/// Breaks at spaces and between Chinese letters; what is too long for a line is broken anywhere.
fn wrapped(text: &str, room: usize) -> Vec<String> {
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
            used = line.chars().map(columns).sum();
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
                assert!(line.chars().map(columns).sum::<usize>() <= room + 2, "{line}");
            }
        }
    }
}
