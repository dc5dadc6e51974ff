//! The one text of an answer, in protocols that do not tell it in blocks. Formats drop white space beside calls and thoughts, so texts that
//! these part get a line's end between them, or words would run together.

use super::Part;

/// What has been said of it so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct OneText {
    has_begun: bool,
    ends_with_space: bool,
    /// Something else was said since.
    is_parted: bool,
}

impl OneText {
    /// One that begins with what is shown before the answer.
    pub(crate) fn behind(shown: &str) -> Self {
        Self { has_begun: !shown.is_empty(), ends_with_space: shown.ends_with(char::is_whitespace), ..Self::default() }
    }

    /// A part as it stands in the answer.
    pub(crate) fn join(&mut self, part: Part) -> Part {
        let Part::Text(mut text) = part else {
            self.is_parted = true;
            return part;
        };
        if self.has_begun && self.is_parted && !self.ends_with_space && !text.starts_with(char::is_whitespace) {
            text.insert(0, '\n');
        }
        *self = Self { has_begun: true, ends_with_space: text.ends_with(char::is_whitespace), is_parted: false };
        Part::Text(text)
    }

    /// A part as it stands where all that is told is told in blocks: texts are one where only what is `hidden` stands between them.
    /// `None`: the part is hidden.
    pub(crate) fn join_block(&mut self, part: Part, is_hidden: bool) -> Option<Part> {
        let part = self.join(part);
        if is_hidden {
            return None;
        }
        if !matches!(part, Part::Text(_)) {
            *self = Self::default();
        }
        Some(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Part {
        Part::Text(text.into())
    }

    fn thought() -> Part {
        Part::Thought("Hm.".into())
    }

    #[test]
    fn texts_that_something_parts_do_not_run_together() {
        for (shown, parts, expected) in [
            ("", vec![text("a"), text("b")], "ab"),
            ("", vec![thought(), text("a")], "a"),
            ("", vec![text("a"), thought(), text("b"), text("c")], "a\nbc"),
            ("", vec![text("a"), Part::Dropped, text("b")], "a\nb"),
            ("", vec![text("a "), thought(), text("b"), thought(), text("\nc")], "a b\nc"),
            ("a", vec![text("b"), thought(), text("c")], "b\nc"),
            ("a", vec![thought(), text("b")], "\nb"),
            ("a ", vec![thought(), text("b")], "b"),
        ] {
            let mut one = OneText::behind(shown);
            let joined = parts.into_iter().filter_map(|part| match one.join(part) {
                Part::Text(text) => Some(text),
                Part::Thought(_) | Part::Call(_) | Part::Dropped => None,
            });
            assert_eq!(joined.collect::<String>(), expected);
        }
    }

    #[test]
    fn texts_are_one_block_where_what_parts_them_is_hidden() {
        let mut one = OneText::default();
        let told = [(text("a"), false), (thought(), true), (text("b"), false), (thought(), false), (text("c"), false)];
        let told: Vec<Part> = told.into_iter().filter_map(|(part, hidden)| one.join_block(part, hidden)).collect();
        assert_eq!(told, [text("a"), text("\nb"), thought(), text("c")]);
    }
}
