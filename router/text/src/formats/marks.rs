//! The fixed texts of a format ("marks": `<think>`, `[TOOL_CALLS]`, ...), found in a text that comes in pieces.
//!
//! The longest mark wins, whatever the reader is at: so that what a text is cut into never depends on what was read before. A
//! beginning of a mark is held back until it is clear whether it is one.
//!
//! An answer may be cut within a character of a mark (`<｜tool▁call｜>`), so that its text ends in U+FFFD, one or as many as there were
//! bytes. Behind these nothing goes on as the mark; at the end they are held back with it.

/// A mark, by its place in [`Marks`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark(u16);

/// A character, or a whole mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Char(char),
    Mark(Mark),
}

/// All marks of a format.
#[derive(Debug, Clone, Default)]
pub(super) struct Marks {
    each: Vec<Text>,
    /// The characters that marks begin with: nearly all others pass at once.
    firsts: String,
}

#[derive(Debug, Clone)]
struct Text {
    text: String,
    /// Without what is a special token: what is shown of a mark that turns out to be none, where special tokens are not shown.
    plain: String,
}

impl Marks {
    /// The mark of this text. Texts are not empty: declarations are checked.
    pub(super) fn add(&mut self, text: &str) -> Mark {
        let at = self.each.iter().position(|mark| mark.text == text).unwrap_or_else(|| {
            self.each.push(Text { text: text.to_owned(), plain: text.to_owned() });
            self.firsts.extend(text.chars().next());
            self.each.len() - 1
        });
        Mark(u16::try_from(at).expect("declarations have few marks"))
    }

    /// Takes notice of the special tokens in marks, and returns their ids, ascending: to be found, they must be seen.
    pub(super) fn bind(&mut self, specials: &[(u32, String)]) -> Vec<u32> {
        let mut ids = Vec::new();
        for mark in &mut self.each {
            for (id, token) in specials {
                if mark.text.contains(token.as_str()) {
                    mark.plain = mark.plain.replace(token.as_str(), "");
                    ids.push(*id);
                }
            }
        }
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    pub(super) fn text(&self, mark: Mark) -> &str {
        &self.each[usize::from(mark.0)].text
    }

    pub(super) fn all(&self) -> impl Iterator<Item = Mark> {
        (0..).map(Mark).take(self.each.len())
    }

    pub(super) fn plain(&self, mark: Mark) -> &str {
        &self.each[usize::from(mark.0)].plain
    }

    #[cfg(test)]
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        self.each.iter().map(|mark| mark.text.as_str())
    }

    /// Whether `held` is the beginning of a mark that is longer.
    fn is_beginning(&self, held: &str) -> bool {
        self.each.iter().any(|mark| mark.text.len() > held.len() && mark.text.starts_with(held))
    }

    /// The longest mark that `held` begins with.
    fn longest(&self, held: &str) -> Option<(Mark, usize)> {
        let found = (0..).zip(&self.each).filter(|(_, mark)| held.starts_with(&mark.text));
        found.map(|(at, mark)| (Mark(at), mark.text.len())).max_by_key(|(_, length)| *length)
    }
}

/// Bytes that a character has before its last one, at most.
const BROKEN_MAX: usize = 3;

/// Cuts one text.
#[derive(Debug, Clone, Default)]
pub(super) struct Cutter {
    held: String,
    /// So many U+FFFD have come behind it.
    broken: usize,
}

impl Cutter {
    /// Takes the next piece of the text. Returns what is clear now.
    pub(super) fn push(&mut self, marks: &Marks, text: &str) -> Vec<Unit> {
        let mut units = Vec::new();
        text.chars().for_each(|c| self.push_char(marks, c, &mut units));
        units
    }

    fn push_char(&mut self, marks: &Marks, c: char, out: &mut Vec<Unit>) {
        if c == char::REPLACEMENT_CHARACTER && self.broken < BROKEN_MAX {
            self.broken += 1;
            return;
        }
        if self.broken > 0 {
            self.give_up(marks, out);
        }
        self.whole_char(marks, c, out);
    }

    fn whole_char(&mut self, marks: &Marks, c: char, out: &mut Vec<Unit>) {
        if self.held.is_empty() && !marks.firsts.contains(c) {
            out.push(Unit::Char(c));
            return;
        }
        self.held.push(c);
        while !self.held.is_empty() && !marks.is_beginning(&self.held) {
            self.take(marks, out);
        }
    }

    /// The broken characters are some.
    fn give_up(&mut self, marks: &Marks, out: &mut Vec<Unit>) {
        for _ in 0..std::mem::take(&mut self.broken) {
            self.whole_char(marks, char::REPLACEMENT_CHARACTER, out);
        }
    }

    /// What might be the beginning of a mark, if more comes.
    pub(super) fn held(&self) -> &str {
        if self.broken == 0 { &self.held } else { "" }
    }

    /// Whether anything is held back.
    pub(super) fn is_holding(&self) -> bool {
        !self.held.is_empty() || self.broken > 0
    }

    /// Whether the text ends with something that is held back, and with what this mark begins with: up to three bytes of a character may
    /// have become so many broken ones, or one.
    pub(super) fn ends_within(&self, mark: &str) -> bool {
        let next = mark.strip_prefix(self.held.as_str()).and_then(|rest| rest.chars().next());
        next.is_some_and(|next| self.broken < next.len_utf8()) && self.is_holding()
    }

    /// The text has ended. Returns what was held back.
    pub(super) fn finish(&mut self, marks: &Marks) -> Vec<Unit> {
        let mut units = Vec::new();
        self.give_up(marks, &mut units);
        while !self.held.is_empty() {
            self.take(marks, &mut units);
        }
        units
    }

    fn take(&mut self, marks: &Marks, out: &mut Vec<Unit>) {
        let first = self.held.chars().next().expect("something is held");
        let (unit, length) = match marks.longest(&self.held) {
            Some((mark, length)) => (Unit::Mark(mark), length),
            None => (Unit::Char(first), first.len_utf8()),
        };
        out.push(unit);
        self.held.drain(..length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(marks: &[&str], text: &str) -> Vec<String> {
        let mut all = Marks::default();
        for mark in marks {
            all.add(mark);
        }
        let mut cutter = Cutter::default();
        let mut units = cutter.push(&all, text);
        units.extend(cutter.finish(&all));
        let shown = units.into_iter().map(|unit| match unit {
            Unit::Char(c) => c.to_string(),
            Unit::Mark(mark) => format!("({})", all.text(mark)),
        });
        shown.collect()
    }

    #[test]
    fn the_longest_mark_wins() {
        assert_eq!(cut(&["<a", "<ab>"], "<ab><ab<a"), ["(<ab>)", "(<a)", "b", "(<a)"]);
        assert_eq!(cut(&["<ab>"], "<<ab><ab"), ["<", "(<ab>)", "<", "a", "b"]);
        assert_eq!(cut(&["aab"], "aaaab"), ["a", "a", "(aab)"]);
        assert_eq!(cut(&[], "é"), ["é"]);
    }

    #[test]
    fn a_mark_may_be_cut_within_a_character() {
        let mut marks = Marks::default();
        let mark = marks.add("<｜a");
        for (text, units, ends_within) in [
            ("x<\u{fffd}", "x", true),
            ("x<\u{fffd}\u{fffd}", "x", true),
            ("x<\u{fffd}\u{fffd}\u{fffd}", "x", false),
            ("x<｜\u{fffd}", "x", false),
            ("x\u{fffd}", "x", false),
            ("x<\u{fffd}y<", "x<\u{fffd}y", true),
            ("x<\u{fffd}<\u{fffd}", "x<\u{fffd}", true),
            ("x<\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}", "x<\u{fffd}\u{fffd}\u{fffd}\u{fffd}", false),
        ] {
            let mut cutter = Cutter::default();
            let whole = |units: Vec<Unit>| {
                units.into_iter().map(|unit| match unit {
                    Unit::Char(c) => c,
                    Unit::Mark(_) => panic!("{text}"),
                })
            };
            let shown: String = whole(cutter.push(&marks, text)).collect();
            assert_eq!((shown.as_str(), cutter.ends_within(marks.text(mark))), (units, ends_within), "{text}");
            assert_eq!(whole(cutter.finish(&marks)).fold(shown, |all, c| all + &c.to_string()), text);
        }
    }
}
