//! Where readers put what they have understood: parts of one kind that follow each other become one piece.

use super::Piece;

#[derive(Debug, Clone, Default)]
pub(super) struct Sink {
    pieces: Vec<Piece>,
    calls: usize,
    /// Whether a call has begun and not ended.
    in_call: bool,
    /// Everything that was ever put here, counted: so that a reader can see whether another has put something.
    events: usize,
}

impl Sink {
    pub(super) fn take(&mut self) -> Vec<Piece> {
        std::mem::take(&mut self.pieces)
    }

    /// Grows with everything that is put here.
    pub(super) fn events(&self) -> usize {
        self.events
    }

    /// Whether a call has ever begun.
    pub(super) fn has_called(&self) -> bool {
        self.calls > 0
    }

    /// Whether a call has begun and not ended.
    pub(super) fn is_within_call(&self) -> bool {
        self.in_call
    }

    pub(super) fn content(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        self.events += 1;
        match self.pieces.last_mut() {
            Some(Piece::Content(last)) => last.push_str(text),
            _ => self.pieces.push(Piece::Content(text.to_owned())),
        }
    }

    pub(super) fn reasoning(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        self.events += 1;
        match self.pieces.last_mut() {
            Some(Piece::Reasoning(last)) => last.push_str(text),
            _ => self.pieces.push(Piece::Reasoning(text.to_owned())),
        }
    }

    /// A call begins; one that has not ended never will.
    pub(super) fn start(&mut self, name: &str, id: Option<String>) {
        self.events += 1;
        self.in_call = true;
        self.pieces.push(Piece::CallStart { index: self.calls, id, name: name.to_owned() });
        self.calls += 1;
    }

    pub(super) fn arguments(&mut self, text: &str) {
        assert!(self.in_call, "arguments belong to a call");
        if text.is_empty() {
            return;
        }
        self.events += 1;
        match self.pieces.last_mut() {
            Some(Piece::CallArguments { delta, .. }) => delta.push_str(text),
            _ => self.pieces.push(Piece::CallArguments { index: self.calls - 1, delta: text.to_owned() }),
        }
    }

    pub(super) fn end(&mut self) {
        assert!(self.in_call, "a call ends once");
        self.events += 1;
        self.in_call = false;
        self.pieces.push(Piece::CallEnd { index: self.calls - 1 });
    }
}
