use super::*;
use crate::CacheScope;

fn request(prompt: usize, stop: StopRule) -> LiveRequest {
    let new = NewRequest {
        id: RequestId(1),
        prompt: vec![9; prompt].into(),
        generated: Vec::new(),
        scored: 0,
        goal: Goal::Tokens,
        sampling: Sampling::greedy(),
        stop,
        masked: false,
        scope: CacheScope::default(),
        priority: 0,
        arrival: Micros(0),
        party: Party::default(),
        deadline: None,
    };
    LiveRequest::new(new, 10, false)
}

fn rule(max_tokens: u32, stop_ids: &[TokenId]) -> StopRule {
    StopRule { max_tokens, min_tokens: 0, stop_ids: stop_ids.into() }
}

#[test]
fn a_request_ends_with_its_stop_token_its_last_token_or_the_context() {
    use FinishReason::{Length, StopToken};
    for (prompt, stop, drawn, expected) in [
        (3, rule(5, &[7]), vec![1, 2, 7], vec![None, None, Some(StopToken(7))]),
        (3, rule(2, &[7]), vec![1, 7], vec![None, Some(StopToken(7))]), // the stop token is the last one too
        (3, rule(2, &[]), vec![1, 2], vec![None, Some(Length)]),
        (8, rule(u32::MAX, &[]), vec![1, 2], vec![None, Some(Length)]),
        (9, rule(5, &[]), vec![1], vec![Some(Length)]),
    ] {
        let mut request = request(prompt, stop);
        let ends: Vec<_> = drawn.iter().map(|&token| request.push(token)).collect();
        assert_eq!(ends, expected, "{prompt} tokens, then {drawn:?}");
    }
}

#[test]
fn the_queue_goes_by_priority_then_arrival_then_id() {
    let place = |priority, arrival, id| Place { priority, arrival: Micros(arrival), id: RequestId(id) };
    let mut places = [place(1, 0, 0), place(0, 5, 1), place(0, 5, 2), place(-1, 9, 3), place(0, 4, 4)];
    places.sort();
    assert_eq!(places.map(|place| place.id.0), [3, 4, 1, 2, 0]);
}

#[test]
fn keys_of_ended_requests_are_used_again() {
    let mut requests = Requests::default();
    let first = requests.insert(request(1, rule(1, &[])));
    requests.remove(first);
    assert_eq!(requests.find(RequestId(1)), None);
    assert_eq!(requests.insert(request(1, rule(1, &[]))), first);
    assert_eq!(requests.find(RequestId(1)), Some(first));
}
