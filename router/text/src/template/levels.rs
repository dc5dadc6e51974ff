//! How deep a template is written: whoever parses or compiles one recurses for every operator of a long chain, and a stack that
//! overflows takes the process with it.

/// Words and signs at most that may stand within each other. 8,000 signs take the 2 MiB that a thread has.
const LEVELS_MAX: usize = 2000;
/// `elif` in a template at most: each is within the one before. 2,000 take 2 MiB.
const ELIFS_MAX: usize = 500;

/// What is too deep, over all tags of a template.
#[derive(Default)]
pub(super) struct Levels {
    elifs: usize,
}

impl Levels {
    /// Takes the next tag or expression, braces and all.
    pub(super) fn take(&mut self, tag: &str) -> Result<(), String> {
        let inner = tag.trim_start_matches(['{', '%', '-', '+']).trim_start();
        self.elifs += usize::from(inner.starts_with("elif"));
        if self.elifs > ELIFS_MAX {
            return Err(format!("it has more than {ELIFS_MAX} `elif`"));
        }
        if levels(tag) > LEVELS_MAX {
            return Err(format!("an expression has more than {LEVELS_MAX} words and signs within each other"));
        }
        Ok(())
    }
}

/// The most words and signs between a place and the last comma before it, with those before the brackets it stands in: no
/// expression is deeper.
fn levels(tag: &str) -> usize {
    let (mut deepest, mut here, mut base) = (0, 0, 0);
    let mut outer = Vec::new(); // what `here` and `base` were before each open bracket
    let (mut quote, mut is_escaped, mut is_word) = (None, false, false);
    for c in tag.chars() {
        if let Some(open) = quote {
            if !is_escaped && c == open {
                quote = None;
            }
            is_escaped = !is_escaped && c == '\\';
            continue;
        }
        let was_word = std::mem::replace(&mut is_word, c.is_alphanumeric() || c == '_');
        match c {
            '"' | '\'' => quote = Some(c),
            '(' | '[' | '{' => {
                here += 1;
                outer.push((here, base));
                base = here;
            }
            ')' | ']' | '}' => (here, base) = outer.pop().unwrap_or((here, base)),
            ',' => here = base,
            _ if c.is_whitespace() || (is_word && was_word) => {}
            _ => here += 1,
        }
        deepest = deepest.max(here);
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_end_what_is_within_each_other_and_brackets_do_not() {
        for (tag, expected) in [
            ("a + b", 3),
            ("a.b.c", 5),
            ("[1, 2, 3, 4, 5]", 2),
            ("'a, b + c' ~ \"\\\" + 1\"", 1),
            ("f(1 + g(2, 3)) + 4", 7),
            ("- - - 1", 4),
        ] {
            assert_eq!(levels(tag), expected, "{tag}");
        }
    }
}
