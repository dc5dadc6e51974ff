//! `multipart/form-data` (RFC 7578), part by part and piece by piece: a part may be larger than memory.
//!
//! At most one piece of the body is held, and the head of one part, which has a bound. Written here because the parsers at hand hold a
//! part's head, and what stands before the first part, in memory whatever its size.

use bytes::{Buf as _, Bytes, BytesMut};
use memchr::memmem;

use super::body::Pieces;
use crate::error::ApiError;

/// The bytes of a part's head at most; browsers send a few hundred.
const HEAD_MAX: usize = 8 << 10;
/// Parts of a form at most.
const PARTS_MAX: usize = 32;

/// A form that is being read.
pub(super) struct Form<P> {
    pieces: P,
    /// What stands before each part and behind the last one.
    delimiter: Vec<u8>,
    /// Read and not yet given away.
    held: BytesMut,
    is_in_part: bool,
    parts: usize,
}

/// Where a form's bytes come from.
pub(super) trait Source {
    /// The next bytes; `None`: that was all.
    async fn next(&mut self) -> Result<Option<Bytes>, ApiError>;
}

impl Source for Pieces {
    async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        Pieces::next(self).await
    }
}

/// The head of a part.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) name: String,
    pub(super) filename: Option<String>,
}

impl<P: Source> Form<P> {
    /// `content_type` is the request's.
    pub(super) fn new(content_type: &str, pieces: P) -> Result<Self, ApiError> {
        let (essence, parameters) = content_type.split_once(';').unwrap_or((content_type, ""));
        if !essence.trim().eq_ignore_ascii_case("multipart/form-data") {
            let got = content_type.chars().take(100).collect();
            return Err(ApiError::WrongMediaType { got, allowed: "multipart/form-data" });
        }
        let boundary = parameter(parameters, "boundary").filter(|text| (1..=70).contains(&text.len()));
        let boundary = boundary.ok_or_else(|| broken("its content type has no boundary of 1 to 70 bytes"))?;
        // The first boundary may stand at the very beginning, where no line has ended.
        let held = BytesMut::from(&b"\r\n"[..]);
        Ok(Self { pieces, delimiter: format!("\r\n--{boundary}").into_bytes(), held, is_in_part: true, parts: 0 })
    }

    /// The next part's head; what is left of the part before is passed over. `None`: that was all.
    pub(super) async fn next(&mut self) -> Result<Option<Part>, ApiError> {
        while self.piece().await?.is_some() {}
        while self.held.len() < 2 {
            self.more().await?;
        }
        if self.held.starts_with(b"--") {
            return Ok(None);
        }
        self.parts += 1;
        if self.parts > PARTS_MAX {
            return Err(broken(&format!("it has more than {PARTS_MAX} parts")));
        }
        let mut searched = 0;
        let end = loop {
            // The boundary's own line ends with the first of these, a head without any line with the second.
            if let Some(at) = memmem::find(&self.held[searched..], b"\r\n\r\n") {
                break searched + at;
            }
            if self.held.len() > HEAD_MAX {
                return Err(broken(&format!("the head of a part has more than {HEAD_MAX} bytes")));
            }
            searched = self.held.len().saturating_sub(3);
            self.more().await?;
        };
        let head = self.held.split_to(end);
        self.held.advance(4);
        self.is_in_part = true;
        part(&String::from_utf8_lossy(&head)).map(Some)
    }

    /// The next bytes of the part; `None`: that was all of it.
    pub(super) async fn piece(&mut self) -> Result<Option<Bytes>, ApiError> {
        while self.is_in_part {
            if let Some(at) = memmem::find(&self.held, &self.delimiter) {
                let piece = self.held.split_to(at).freeze();
                self.held.advance(self.delimiter.len());
                self.is_in_part = false;
                return Ok((!piece.is_empty()).then_some(piece));
            }
            // The end of what is here may be the beginning of a delimiter.
            let sure = self.held.len().saturating_sub(self.delimiter.len() - 1);
            if sure > 0 {
                return Ok(Some(self.held.split_to(sure).freeze()));
            }
            self.more().await?;
        }
        Ok(None)
    }

    /// The whole part, as a text.
    pub(super) async fn text(&mut self, name: &str) -> Result<String, ApiError> {
        const MAX: usize = 1024;
        let mut text = Vec::new();
        while let Some(piece) = self.piece().await? {
            text.extend_from_slice(&piece);
            if text.len() > MAX {
                return Err(ApiError::invalid(name, "longer", format!("a text of at most {MAX} bytes")));
            }
        }
        String::from_utf8(text).map_err(|_| ApiError::invalid(name, "not UTF-8", "a text"))
    }

    async fn more(&mut self) -> Result<(), ApiError> {
        match self.pieces.next().await? {
            Some(piece) => self.held.extend_from_slice(&piece),
            None => return Err(broken("it ends before its last boundary")),
        }
        Ok(())
    }
}

fn broken(reason: &str) -> ApiError {
    ApiError::BadForm { reason: reason.to_owned() }
}

/// Reads a part's head, which begins with the rest of the boundary's line.
fn part(head: &str) -> Result<Part, ApiError> {
    let disposition = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim().eq_ignore_ascii_case("content-disposition").then_some(value)
    });
    let disposition = disposition.ok_or_else(|| broken("a part has no `Content-Disposition`"))?;
    let (kind, parameters) = disposition.split_once(';').unwrap_or((disposition, ""));
    let name = parameter(parameters, "name").filter(|_| kind.trim().eq_ignore_ascii_case("form-data"));
    let name = name.ok_or_else(|| broken("a part has no name"))?;
    // Some clients write names that are not ASCII in the form of RFC 5987 alone.
    let filename =
        parameter(parameters, "filename").or_else(|| parameter(parameters, "filename*").map(|it| decoded(&it)));
    Ok(Part { name, filename })
}

/// `UTF-8''caf%C3%A9.jsonl` as a text. What stands for no byte stays as it is.
fn decoded(extended: &str) -> String {
    let mut rest = extended.rsplit('\'').next().unwrap_or_default();
    let mut bytes = Vec::new();
    while let Some((before, after)) = rest.split_once('%') {
        bytes.extend_from_slice(before.as_bytes());
        let byte = after.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.unwrap_or(b'%'));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    bytes.extend_from_slice(rest.as_bytes());
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A parameter's value: `; name="a \"text\""; other=word`. Browsers write a quote as `%22`, and others as `\"`.
fn parameter(parameters: &str, wanted: &str) -> Option<String> {
    let mut rest = parameters;
    loop {
        rest = rest.trim_start_matches([';', ' ', '\t']);
        let (name, after) = rest.split_once('=')?;
        let (value, end) = match after.strip_prefix('"') {
            Some(quoted) => unquoted(quoted)?,
            None => {
                let end = after.find(';').unwrap_or(after.len());
                (after[..end].trim().to_owned(), &after[end..])
            }
        };
        if name.trim().eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        rest = end;
    }
}

/// A text up to its closing quote, and what stands behind that.
fn unquoted(quoted: &str) -> Option<(String, &str)> {
    let mut text = String::new();
    let mut letters = quoted.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Some((text.replace("%22", "\""), &quoted[at + 1..])),
            '\\' => match letters.next()? {
                (_, escaped @ ('"' | '\\')) => text.push(escaped),
                // Old browsers send paths with plain backslashes.
                (_, other) => text.extend(['\\', other]),
            },
            other => text.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    impl Source for VecDeque<Bytes> {
        async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
            Ok(self.pop_front())
        }
    }

    const TYPE: &str = "multipart/form-data; boundary=\"x y\"";

    type Parts = Vec<(String, Option<String>, Vec<u8>)>;

    /// All parts of a body that comes in pieces, and the most bytes that were held.
    fn read(pieces: &[&[u8]]) -> Result<(Parts, usize), ApiError> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let pieces = pieces.iter().map(|piece| Bytes::copy_from_slice(piece)).collect::<VecDeque<_>>();
            let (mut form, mut parts, mut held) = (Form::new(TYPE, pieces)?, Vec::new(), 0);
            while let Some(part) = form.next().await? {
                let mut bytes = Vec::new();
                while let Some(piece) = form.piece().await? {
                    held = held.max(form.held.len() + piece.len());
                    bytes.extend_from_slice(&piece);
                }
                parts.push((part.name, part.filename, bytes));
            }
            Ok((parts, held))
        })
    }

    fn body(contents: &[&[u8]]) -> Vec<u8> {
        let mut body = Vec::new();
        for (index, content) in contents.iter().enumerate() {
            body.extend_from_slice(
                format!("--x y\r\nContent-Disposition: form-data; name=\"p{index}\"; filename=\"f\"\r\nX: y\r\n\r\n")
                    .as_bytes(),
            );
            body.extend_from_slice(content);
            body.extend_from_slice(b"\r\n");
        }
        body.extend_from_slice(b"--x y--\r\n");
        body
    }

    proptest! {
        #[test]
        fn a_form_cut_anywhere_has_the_same_parts(
            contents in prop::collection::vec("(\r|\n|-|x| |y|\r\n--x|a){0,12}", 0..4),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 2),
        ) {
            let contents: Vec<&[u8]> = contents.iter().map(String::as_bytes).collect();
            prop_assume!(!contents.iter().any(|content| memmem::find(content, b"\r\n--x y").is_some()));
            let body = body(&contents);
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(body.len() + 1)).collect();
            cuts.sort_unstable();
            let (parts, _) = read(&[&body[..cuts[0]], &body[cuts[0]..cuts[1]], &body[cuts[1]..]]).expect("a form");
            let expected: Parts = contents
                .iter()
                .enumerate()
                .map(|(index, content)| (format!("p{index}"), Some("f".to_owned()), content.to_vec()))
                .collect();
            prop_assert_eq!(parts, expected);
        }
    }

    #[test]
    fn no_more_than_a_piece_is_held() {
        let content = vec![b'\r'; 1 << 20];
        let whole = body(&[&content]);
        let pieces: Vec<&[u8]> = whole.chunks(1000).collect();
        let (parts, held) = read(&pieces).expect("a form");
        assert_eq!(parts[0].2.len(), content.len());
        assert!(held <= 1000 + TYPE.len(), "{held}");
    }

    #[test]
    fn what_is_no_form_is_refused() {
        for (body, words) in [
            ("", "before its last boundary"),
            ("--x y\r\n", "before its last boundary"),
            ("--x y\r\nContent-Disposition: form-data; name=a\r\n\r\nfoo", "before its last boundary"),
            ("--x y\r\nX: y\r\n\r\nfoo\r\n--x y--", "no `Content-Disposition`"),
            ("--x y\r\nContent-Disposition: attachment; name=a\r\n\r\nfoo\r\n--x y--", "no name"),
            (&format!("--x y\r\n{}", "x".repeat(HEAD_MAX)), "head of a part"),
            (
                &"--x y\r\nContent-Disposition: form-data; name=a\r\n\r\n\r\n".repeat(PARTS_MAX + 1),
                "more than 32 parts",
            ),
        ] {
            let error = read(&[body.as_bytes()]).expect_err(words).to_string();
            assert!(error.contains(words), "{error}: {words}");
        }
        for (content_type, is_form) in [
            (TYPE, true),
            ("Multipart/Form-Data;boundary=a", true),
            ("multipart/form-data", false),
            ("text/plain", false),
        ] {
            assert_eq!(Form::new(content_type, VecDeque::new()).is_ok(), is_form, "{content_type}");
        }
    }

    #[test]
    fn a_files_name_may_be_extended() {
        for (head, expected) in [
            ("; filename*=UTF-8''caf%C3%A9.jsonl", Some("café.jsonl")),
            ("; filename*=utf-8'en'100%25", Some("100%")),
            ("; filename*=x%zz%", Some("x%zz%")),
            ("; filename=\"a\"; filename*=UTF-8''b", Some("a")),
            ("", None),
        ] {
            let part = part(&format!("Content-Disposition: form-data; name=\"file\"{head}")).expect("a part");
            assert_eq!(part.filename.as_deref(), expected, "{head}");
        }
    }

    #[test]
    fn parameters_may_be_quoted() {
        for (text, expected) in [
            (r#"; name="a"; filename="b; c.txt""#, Some("b; c.txt")),
            (r#"; filename="a \"b\" %22c%22""#, Some(r#"a "b" "c""#)),
            (r#"; filename="C:\dir\file""#, Some(r"C:\dir\file")),
            ("; FileName = word ; x=y", Some("word")),
            ("; filename*=UTF-8''x", None),
            (r#"; filename="open"#, None),
            ("", None),
        ] {
            assert_eq!(parameter(text, "filename").as_deref(), expected, "{text}");
        }
    }
}
