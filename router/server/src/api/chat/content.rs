//! The one text of a chat's answer. Formats drop white space beside calls and thoughts, so texts that these part get a line's end
//! between them, or words would run together. Protocols that tell an answer in blocks need none.

use crate::generate::Part;

/// What has been said of it so far.
#[derive(Debug, Clone, Default)]
pub(super) struct OneText {
    has_begun: bool,
    ends_with_space: bool,
    /// Something else was said since.
    is_parted: bool,
}

impl OneText {
    /// A part as it stands in the answer.
    pub(super) fn join(&mut self, part: Part) -> Part {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_something_parts_do_not_run_together() {
        let text = |text: &str| Part::Text(text.into());
        let thought = || Part::Thought("Hm.".into());
        for (parts, expected) in [
            (vec![text("a"), text("b")], "ab"),
            (vec![thought(), text("a")], "a"),
            (vec![text("a"), thought(), text("b"), text("c")], "a\nbc"),
            (vec![text("a "), thought(), text("b"), thought(), text("\nc")], "a b\nc"),
        ] {
            let mut one = OneText::default();
            let joined = parts.into_iter().filter_map(|part| match one.join(part) {
                Part::Text(text) => Some(text),
                Part::Thought(_) | Part::Call(_) => None,
            });
            assert_eq!(joined.collect::<String>(), expected);
        }
    }
}
