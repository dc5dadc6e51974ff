//! The fixed texts of a format ("marks": `<think>`, `[TOOL_CALLS]`, ...), found in a text that comes in pieces.
//!
//! The longest mark wins, whatever the reader is at: so that what a text is cut into never depends on what was read before. A
//! beginning of a mark is held back until it is clear whether it is one.

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

/// Cuts one text.
#[derive(Debug, Clone, Default)]
pub(super) struct Cutter {
    held: String,
}

impl Cutter {
    /// Takes the next piece of the text. Returns what is clear now.
    pub(super) fn push(&mut self, marks: &Marks, text: &str) -> Vec<Unit> {
        let mut units = Vec::new();
        text.chars().for_each(|c| self.push_char(marks, c, &mut units));
        units
    }

    fn push_char(&mut self, marks: &Marks, c: char, out: &mut Vec<Unit>) {
        if self.held.is_empty() && !marks.firsts.contains(c) {
            out.push(Unit::Char(c));
            return;
        }
        self.held.push(c);
        while !self.held.is_empty() && !marks.is_beginning(&self.held) {
            self.take(marks, out);
        }
    }

    /// What might be the beginning of a mark.
    pub(super) fn held(&self) -> &str {
        &self.held
    }

    /// The text has ended. Returns what was held back.
    pub(super) fn finish(&mut self, marks: &Marks) -> Vec<Unit> {
        let mut units = Vec::new();
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
}
