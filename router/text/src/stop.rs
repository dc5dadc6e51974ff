//! Finds stop strings in a text that comes in pieces, and never shows part of one that completes.
//!
//! An Aho-Corasick automaton over bytes. Its state after a text is the longest end of that text that begins some stop
//! string; the state's depth is therefore exactly what must be held back, and no more. All stop strings begin with a
//! whole character, so what is held back does, too. Time: linear in the text, whatever the stop strings are.

/// Finds the first stop string to complete.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    automaton: Automaton,
    shown_with_text: bool,
    state: u32,
    /// Text that came; of it, `shown` bytes have gone out.
    text: String,
    shown: usize,
    hit: Option<usize>,
}

/// What one piece of text led to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StopStep {
    /// Safe to show: no stop string can begin in it any more.
    pub text: String,
    /// The index of the stop string that completed. Nothing is shown afterwards.
    pub hit: Option<usize>,
}

impl StopMatcher {
    /// `include`: the stop string itself is shown. An empty stop string never matches.
    ///
    /// Of several that complete at the same character the longest wins: a shorter one would leave its beginning shown.
    pub fn new(stops: Vec<String>, include: bool) -> Self {
        let automaton = Automaton::new(&stops);
        Self { automaton, shown_with_text: include, state: ROOT, text: String::new(), shown: 0, hit: None }
    }

    /// Takes the next piece of text.
    pub fn push(&mut self, text: &str) -> StopStep {
        if self.hit.is_some() {
            return StopStep { text: String::new(), hit: self.hit };
        }
        let before = self.text.len();
        self.text.push_str(text);
        for (at, byte) in text.bytes().enumerate() {
            self.state = self.automaton.next(self.state, byte);
            if let Some(stop) = self.automaton.nodes[self.state as usize].stop {
                let end = before + at + 1;
                self.hit = Some(stop.index);
                // One that is included may have begun in text that was shown and dropped: only what was held back is there.
                return self.show_until(if self.shown_with_text { end } else { end - stop.bytes });
            }
        }
        // With `include` nothing is ever taken back, so nothing is held back.
        let held = if self.shown_with_text { 0 } else { self.automaton.nodes[self.state as usize].depth };
        self.show_until(self.text.len() - held)
    }

    /// Ends the text; gives what was held back for a stop string that did not complete.
    pub fn finish(&mut self) -> String {
        let end = if self.hit.is_some() { self.shown } else { self.text.len() };
        self.show_until(end).text
    }

    fn show_until(&mut self, end: usize) -> StopStep {
        let text = self.text[self.shown..end].to_owned();
        self.shown = end;
        // Moving what is left costs no more than what has been shown since the last move.
        if self.shown > self.text.len() / 2 {
            self.text.drain(..self.shown);
            self.shown = 0;
        }
        StopStep { text, hit: self.hit }
    }
}

const ROOT: u32 = 0;

#[derive(Debug, Clone)]
struct Automaton {
    nodes: Vec<Node>,
}

#[derive(Debug, Clone, Default)]
struct Node {
    children: Vec<(u8, u32)>,
    /// The state for the longest proper end of this one that is also a beginning.
    fallback: u32,
    depth: usize,
    /// The longest stop string that ends here.
    stop: Option<Stop>,
}

#[derive(Debug, Clone, Copy)]
struct Stop {
    index: usize,
    bytes: usize,
}

impl Automaton {
    fn new(stops: &[String]) -> Self {
        let mut automaton = Self { nodes: vec![Node::default()] };
        for (index, stop) in stops.iter().enumerate().filter(|(_, stop)| !stop.is_empty()) {
            let end = stop.bytes().fold(ROOT, |node, byte| automaton.grow(node, byte));
            automaton.nodes[end as usize].stop.get_or_insert(Stop { index, bytes: stop.len() });
        }
        automaton.link();
        automaton
    }

    fn grow(&mut self, node: u32, byte: u8) -> u32 {
        if let Some(child) = self.child(node, byte) {
            return child;
        }
        let child =
            u32::try_from(self.nodes.len()).expect("stop strings are bounded by the request's size, far below 4 GiB");
        let depth = self.nodes[node as usize].depth + 1;
        self.nodes.push(Node { depth, ..Node::default() });
        self.nodes[node as usize].children.push((byte, child));
        child
    }

    /// Breadth first, so that a node's fallback, which is less deep, is finished before the node is.
    fn link(&mut self) {
        let mut queue = std::collections::VecDeque::from([ROOT]);
        while let Some(node) = queue.pop_front() {
            for (byte, child) in self.nodes[node as usize].children.clone() {
                let fallback = if node == ROOT { ROOT } else { self.next(self.nodes[node as usize].fallback, byte) };
                let inherited = self.nodes[fallback as usize].stop;
                let child_node = &mut self.nodes[child as usize];
                child_node.fallback = fallback;
                child_node.stop = child_node.stop.or(inherited);
                queue.push_back(child);
            }
        }
    }

    fn next(&self, mut node: u32, byte: u8) -> u32 {
        loop {
            if let Some(child) = self.child(node, byte) {
                return child;
            }
            if node == ROOT {
                return ROOT;
            }
            node = self.nodes[node as usize].fallback;
        }
    }

    fn child(&self, node: u32, byte: u8) -> Option<u32> {
        self.nodes[node as usize].children.iter().find(|(of, _)| *of == byte).map(|(_, child)| *child)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stream<'a>(stops: &[&str], include: bool, pieces: impl IntoIterator<Item = &'a str>) -> (String, Option<usize>) {
        let mut matcher = StopMatcher::new(stops.iter().map(|stop| (*stop).to_owned()).collect(), include);
        let mut shown = String::new();
        let mut hit = None;
        for piece in pieces {
            let step = matcher.push(piece);
            assert!(hit.is_none() || step.text.is_empty(), "nothing is shown after a stop");
            shown.push_str(&step.text);
            hit = step.hit;
        }
        shown.push_str(&matcher.finish());
        (shown, hit)
    }

    #[track_caller]
    fn check(stops: &[&str], pieces: &[&str], shown: &str, hit: Option<usize>) {
        assert_eq!(stream(stops, false, pieces.iter().copied()), (shown.to_owned(), hit));
    }

    #[test]
    fn stop_strings_are_found_across_pieces() {
        check(&["END"], &["go E", "N", "D on"], "go ", Some(0));
        check(&["END"], &["go E", "N", "d on"], "go ENd on", None);
        check(&["aab"], &["aaa", "ab"], "aa", Some(0));
        check(&["€"], &["1 ", "€ more"], "1 ", Some(0));
        check(&["x"], &["", "", "x"], "", Some(0));
        check(&[], &["all ", "of it"], "all of it", None);
        check(&[""], &["all ", "of it"], "all of it", None);
    }

    #[test]
    fn the_one_that_completes_first_wins_and_of_two_the_longer() {
        check(&["abcd", "bc"], &["abcd"], "a", Some(1));
        check(&["b", "ab"], &["xab"], "x", Some(1));
        check(&["ab", "ab"], &["xab"], "x", Some(0));
    }

    #[test]
    fn an_unfinished_beginning_is_shown_at_the_end_only() {
        let mut matcher = StopMatcher::new(vec!["\n\nUser:".into()], false);
        assert_eq!(matcher.push("Hi\n\nUse").text, "Hi");
        assert_eq!(matcher.push("r-friendly").text, "\n\nUser-friendly");
        assert_eq!(matcher.push("\n").text, "");
        assert_eq!(matcher.finish(), "\n");
        assert_eq!(matcher.finish(), "");
    }

    #[test]
    fn an_included_stop_is_shown_and_nothing_after_it() {
        assert_eq!(stream(&["END"], true, ["go E", "ND on"]), ("go END".into(), Some(0)));
        let mut matcher = StopMatcher::new(vec!["END".into()], true);
        assert_eq!(matcher.push("E").text, "E", "what will be shown in any case need not wait");
    }

    /// The definition, without automata: the first end of a stop string, and the longest that ends there.
    fn oracle(stops: &[String], include: bool, text: &str) -> (String, Option<usize>) {
        let ends = (0..=text.len()).filter(|end| text.is_char_boundary(*end));
        for end in ends {
            let best = stops
                .iter()
                .enumerate()
                .filter(|(_, stop)| !stop.is_empty() && text[..end].ends_with(stop.as_str()))
                .max_by_key(|(index, stop)| (stop.len(), std::cmp::Reverse(*index)));
            if let Some((index, stop)) = best {
                let shown = if include { end } else { end - stop.len() };
                return (text[..shown].to_owned(), Some(index));
            }
        }
        (text.to_owned(), None)
    }

    proptest! {
        #[test]
        fn any_cut_shows_what_the_definition_shows(
            stops in prop::collection::vec("[aböc]{0,4}", 0..4),
            pieces in prop::collection::vec("[aböc]{0,5}", 0..12),
            include: bool,
        ) {
            let text = pieces.concat();
            let named: Vec<&str> = stops.iter().map(String::as_str).collect();
            prop_assert_eq!(stream(&named, include, pieces.iter().map(String::as_str)), oracle(&stops, include, &text));
        }

        #[test]
        fn only_beginnings_of_stops_are_held_back(
            stops in prop::collection::vec("[ab]{1,5}", 1..4),
            pieces in prop::collection::vec("[ab]{0,3}", 0..12),
        ) {
            let mut matcher = StopMatcher::new(stops.clone(), false);
            let mut all = String::new();
            let mut shown = String::new();
            for piece in &pieces {
                all.push_str(piece);
                let step = matcher.push(piece);
                shown.push_str(&step.text);
                if step.hit.is_some() {
                    break;
                }
                let held = &all[shown.len()..];
                prop_assert!(held.is_empty() || stops.iter().any(|stop| stop.starts_with(held)), "held back {held:?}");
            }
        }
    }
}
