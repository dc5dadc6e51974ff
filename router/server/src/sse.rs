//! Reads a server-sent event stream: bytes in, cut anywhere; the `data` of each event out.
//!
//! Never here: sockets, and what an event means.

/// Bytes that have arrived and do not yet make a whole line.
#[derive(Debug, Default)]
pub(crate) struct EventReader {
    rest: Vec<u8>,
    data: Vec<String>,
}

impl EventReader {
    /// Takes bytes in; `event` gets the data of each event that is complete now.
    pub(crate) fn push(&mut self, bytes: &[u8], mut event: impl FnMut(&str)) {
        self.rest.extend_from_slice(bytes);
        let mut start = 0;
        while let Some(length) = self.rest[start..].iter().position(|byte| *byte == b'\n') {
            let line = &self.rest[start..start + length];
            let line = String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line));
            if line.is_empty() && !self.data.is_empty() {
                event(&self.data.join("\n"));
                self.data.clear();
            } else if let Some(data) = line.strip_prefix("data:") {
                self.data.push(data.strip_prefix(' ').unwrap_or(data).to_owned());
            }
            start += length + 1;
        }
        self.rest.drain(..start);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn events(pieces: &[&[u8]]) -> Vec<String> {
        let mut reader = EventReader::default();
        let mut all = Vec::new();
        for piece in pieces {
            reader.push(piece, |data| all.push(data.to_owned()));
        }
        all
    }

    #[test]
    fn fields_other_than_data_and_comments_are_passed_over() {
        let stream =
            b": hello\n\nevent: x\ndata: {\"a\":1}\nid: 7\n\ndata:two\r\ndata: lines\r\n\r\ndata: unfinished\n";
        assert_eq!(events(&[stream]), ["{\"a\":1}", "two\nlines"]);
    }

    proptest! {
        #[test]
        fn a_stream_cut_anywhere_gives_the_same_events(texts in prop::collection::vec("[^\\r\\n]{0,20}", 0..8), cut in any::<prop::sample::Index>()) {
            let stream: String = texts.iter().map(|text| format!("data: {text}\n\n")).collect();
            let at = cut.index(stream.len() + 1);
            let (left, right) = stream.as_bytes().split_at(at);
            prop_assert_eq!(events(&[left, right]), texts);
        }
    }
}
