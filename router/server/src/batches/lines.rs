//! The lines of a batch's file, one at a time: memory does not grow with their number, and a line has a bound of its own.

use std::{
    collections::HashSet,
    fs::File,
    hash::{BuildHasher as _, RandomState},
    io::{self, BufRead, BufReader, Read as _},
    path::Path,
};

use bytes::Bytes;
use serde::Deserialize;

use crate::api::batches::{Item, LineError};

/// Lines of one file at most. What is checked of all of them at once are 16 bytes of each name: 32 MiB.
const LINES_MAX: u64 = 1_000_000;
/// Wrong lines that are told; nobody reads more.
const ERRORS_MAX: usize = 100;
/// What a line has beside its request's body.
const AROUND_BODY: usize = 4096;
/// What some editors begin a file with, to say that it is UTF-8.
const MARK: &[u8] = b"\xef\xbb\xbf";

/// What lines may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Form {
    /// Where all of them go; `None`: each says it itself.
    pub(crate) endpoint: Option<&'static str>,
    /// Of each request's body.
    pub(crate) body_bytes: usize,
}

/// Reads the requests of a file, one after the other.
pub(crate) struct Lines<R> {
    input: R,
    form: Form,
    line: u64,
}

impl Lines<BufReader<File>> {
    pub(crate) fn open(path: &Path, form: Form) -> io::Result<Self> {
        Ok(Self::new(BufReader::with_capacity(64 << 10, File::open(path)?), form))
    }
}

impl<R: BufRead> Lines<R> {
    pub(crate) fn new(input: R, form: Form) -> Self {
        Self { input, form, line: 0 }
    }

    /// The next line's request, or what is wrong with it. Empty lines are passed over.
    pub(crate) fn next(&mut self) -> io::Result<Option<Result<Item, LineError>>> {
        let limit = self.form.body_bytes + AROUND_BODY;
        loop {
            let mut text = Vec::new();
            let read = (&mut self.input).take(limit as u64 + 1).read_until(b'\n', &mut text)?;
            if read == 0 {
                return Ok(None);
            }
            self.line += 1;
            if self.line == 1 && text.starts_with(MARK) {
                text.drain(..MARK.len());
            }
            if read > limit && text.last() != Some(&b'\n') {
                self.skip()?;
                let message = format!("the line has more than {limit} bytes");
                return Ok(Some(Err(LineError::of_line(self.line, "line_too_long", message))));
            }
            // Without the line's end: an error within it is of its only line.
            text.truncate(text.trim_ascii_end().len());
            if !text.is_empty() {
                return Ok(Some(Item::read(self.line, &Bytes::from(text), self.form.endpoint)));
            }
        }
    }

    /// What is left of a line.
    fn skip(&mut self) -> io::Result<()> {
        loop {
            let piece = self.input.fill_buf()?;
            let (count, is_end) = match memchr::memchr(b'\n', piece) {
                Some(at) => (at + 1, true),
                None => (piece.len(), piece.is_empty()),
            };
            self.input.consume(count);
            if is_end {
                return Ok(());
            }
        }
    }
}

/// How many requests there are, if all of them can be begun; else what is wrong. Nothing runs of a file with a wrong line: whoever has
/// made it wants to hear so at once.
pub(crate) fn check<R: BufRead>(mut lines: Lines<R>) -> io::Result<Result<u64, Vec<LineError>>> {
    let (mut count, mut errors) = (0, Vec::new());
    let (mut names, mut first) = (Names::default(), None);
    while let Some(read) = lines.next()? {
        count += 1;
        match read {
            Ok(item) if !names.insert(&item.custom_id) => {
                errors.push(LineError::duplicate(item.line, &item.custom_id));
            }
            Ok(Item { line, model: Some(model), .. }) => match &first {
                None => first = Some(model),
                Some(first) if *first != model => errors.push(LineError::of_model(line, &model, first)),
                Some(_) => {}
            },
            Ok(_) => {}
            Err(error) => errors.push(error),
        }
        if count > LINES_MAX {
            let message = format!("there are more than {LINES_MAX} requests; cut the file into several");
            errors.push(LineError::of_batch("too_many_requests", message));
        }
        if errors.len() >= ERRORS_MAX || count > LINES_MAX {
            break;
        }
    }
    if count == 0 {
        errors.push(LineError::of_batch("empty_file", "there is no request in the file"));
    }
    Ok(if errors.is_empty() { Ok(count) } else { Err(errors) })
}

/// Names that were there, by 128 bits of each: nobody can choose two that are the same here without knowing the keys.
#[derive(Default)]
pub(crate) struct Names {
    keys: [RandomState; 2],
    seen: HashSet<u128>,
}

impl Names {
    /// False: it was there before.
    pub(crate) fn insert(&mut self, name: &str) -> bool {
        let number = self.number(name);
        self.seen.insert(number)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.seen.contains(&self.number(name))
    }

    pub(crate) fn len(&self) -> u64 {
        self.seen.len() as u64
    }

    fn number(&self, name: &str) -> u128 {
        let [low, high] = self.keys.each_ref().map(|key| u128::from(key.hash_one(name)));
        high << 64 | low
    }

    /// The names of all lines of an output that was written before.
    pub(crate) fn of_output(mut self, path: &Path) -> io::Result<Self> {
        #[derive(Deserialize)]
        struct Named {
            custom_id: String,
        }
        let mut input = BufReader::with_capacity(64 << 10, File::open(path)?);
        let mut text = Vec::new();
        while input.read_until(b'\n', &mut text)? > 0 {
            let named: Named = serde_json::from_slice(&text)?;
            self.insert(&named.custom_id);
            text.clear();
        }
        Ok(self)
    }
}

/// Lines that are answered, a bit for each.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Done(Vec<u64>);

impl Done {
    pub(crate) fn mark(&mut self, line: u64) {
        let (word, bit) = Self::place(line);
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= bit;
    }

    pub(crate) fn has(&self, line: u64) -> bool {
        let (word, bit) = Self::place(line);
        self.0.get(word).is_some_and(|bits| bits & bit != 0)
    }

    fn place(line: u64) -> (usize, u64) {
        ((line / 64) as usize, 1 << (line % 64))
    }

    /// Those of `lines` whose names stand in an output already.
    pub(crate) fn of<R: BufRead>(mut lines: Lines<R>, answered: &Names) -> io::Result<Self> {
        let mut done = Self::default();
        while let Some(read) = lines.next()? {
            if let Ok(item) = read
                && answered.has(&item.custom_id)
            {
                done.mark(item.line);
            }
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(id: &str) -> String {
        format!(r#"{{"custom_id": "{id}", "method": "POST", "url": "/v1/completions", "body": {{"prompt": "{id}"}}}}"#)
    }

    fn lines(text: &str, body_bytes: usize) -> Lines<&[u8]> {
        Lines::new(text.as_bytes(), Form { endpoint: Some("/v1/completions"), body_bytes })
    }

    fn check_of(text: &str) -> Result<u64, Vec<(String, Option<u64>)>> {
        let checked = check(lines(text, 100)).expect("nothing fails in memory");
        checked.map_err(|errors| errors.into_iter().map(|error| (error.code, error.line)).collect())
    }

    #[test]
    fn empty_lines_are_passed_over_and_counted() {
        let text = format!("\n{}\r\n  \n{}", line("a"), line("b"));
        let mut lines = lines(&text, 100);
        let mut numbers = Vec::new();
        while let Some(read) = lines.next().expect("read") {
            numbers.push(read.expect("a request").line);
        }
        assert_eq!(numbers, [2, 4]);
        assert_eq!(check_of(&text), Ok(2));
    }

    #[test]
    fn a_file_may_begin_with_a_mark_of_utf_8() {
        let marked = |text: &str| format!("\u{feff}{text}");
        assert_eq!(check_of(&marked(&line("a"))), Ok(1));
        assert_eq!(check_of(&marked(&format!("\n{}", line("a")))), Ok(1));
        let wrong = vec![("invalid_json_line".to_owned(), Some(2))];
        assert_eq!(check_of(&format!("{}\n{}", line("a"), marked(&line("b")))), Err(wrong), "elsewhere it is none");
    }

    #[test]
    fn everything_wrong_is_told_with_its_line() {
        let wrong = |code: &str, line| (code.to_owned(), line);
        assert_eq!(check_of(""), Err(vec![wrong("empty_file", None)]));
        assert_eq!(check_of("\n \n"), Err(vec![wrong("empty_file", None)]));
        let text = format!("{}\nnonsense\n{}\n{}\n", line("a"), line("a"), line("b"));
        assert_eq!(
            check_of(&text),
            Err(vec![wrong("invalid_json_line", Some(2)), wrong("duplicate_custom_id", Some(3))])
        );
        assert_eq!(check_of(&"{\n".repeat(1000)).expect_err("all are wrong").len(), ERRORS_MAX);
    }

    #[test]
    fn all_lines_are_of_one_model() {
        let of = |id: &str, model: &str| {
            format!(
                r#"{{"custom_id": "{id}", "method": "POST", "url": "/v1/completions", "body": {{"model": {model}}}}}"#
            )
        };
        let text = [line("a"), of("b", "\"m\""), of("c", "null"), of("d", "\"m\""), of("e", "5")].join("\n");
        assert_eq!(check_of(&text), Ok(5));
        let text = [of("a", "\"m\""), of("b", "\"other\"")].join("\n");
        assert_eq!(check_of(&text), Err(vec![("mismatched_model".to_owned(), Some(2))]));
    }

    #[test]
    fn a_line_that_is_too_long_is_skipped_and_not_held() {
        let text = format!("{}\n{}\n{}\n", line("a"), "x".repeat(AROUND_BODY + 101), line("b"));
        assert_eq!(check_of(&text), Err(vec![("line_too_long".to_owned(), Some(2))]));
        let last = format!("{}\n{}", line("a"), "x".repeat(1 << 20));
        assert_eq!(check_of(&last), Err(vec![("line_too_long".to_owned(), Some(2))]));
        let exact = format!("{}{}", line("a"), " ".repeat(AROUND_BODY + 100 - line("a").len()));
        assert_eq!(check_of(&exact), Ok(1));
    }

    #[test]
    fn what_stands_in_an_output_is_done() {
        let output = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(output.path(), "{\"id\": 1, \"custom_id\": \"b\"}\n{\"custom_id\": \"\\u0063\"}\n")
            .expect("written");
        let names = Names::default().of_output(output.path()).expect("read");
        assert_eq!(names.len(), 2);
        let text = format!("{}\n\n{}\n{}\n", line("a"), line("b"), line("c"));
        let done = Done::of(lines(&text, 100), &names).expect("read");
        assert_eq!([1, 2, 3, 4, 1000].map(|line| done.has(line)), [false, false, true, true, false]);
    }
}
