//! What the core tells, compared with what is known of each request.

use super::*;

impl World {
    /// Takes in what the core tells, and believes none of it.
    pub(super) fn hear(&mut self) {
        self.hear_of_cache();
        let events: Vec<Event> = self.core.events().collect();
        for event in events {
            match event {
                Event::Admitted { request, cached } => {
                    let tale = self.tale(request);
                    assert!(!std::mem::replace(&mut tale.was_admitted, true), "{request:?} is admitted once");
                    assert!(cached as usize <= tale.new.prompt.len());
                    let is_behind =
                        tale.new.scope.spans().first().is_some_and(|span| cached >= span.start + span.tokens);
                    self.seen.cached_behind_spans += u64::from(is_behind);
                }
                Event::Scored { request, scores } => {
                    let tale = self.tale(request);
                    assert!(tale.was_admitted && !tale.has_ended && !tale.is_held);
                    assert!(!scores.is_empty() && tale.told.len() == tale.new.generated.len(), "before it draws");
                    let expected: Vec<TokenScore> = tale.scores.drain(..scores.len()).collect();
                    assert_eq!(*scores, expected, "{request:?}: each prompt token once, in order, as when alone");
                    self.seen.scores += scores.len() as u64;
                }
                Event::Token { request, token, logprobs } => {
                    let tale = self.tale(request);
                    assert!(tale.scores.is_empty(), "{request:?}: all of its prompt comes first");
                    assert!(tale.was_admitted && !tale.has_ended, "{request:?}: a token in the midst of its life");
                    assert!(!tale.is_held, "{request:?} was kept back");
                    assert_eq!(
                        Some(&token),
                        tale.alone.get(tale.told.len()),
                        "{request:?}: token {} as when alone",
                        tale.told.len()
                    );
                    assert_eq!(
                        logprobs.as_deref(),
                        tale.new.sampling.logprobs.map(|_| worker::logprobs(token)).as_ref()
                    );
                    tale.told.push(token);
                }
                Event::Vector { request, vector } => {
                    let tale = self.tale(request);
                    assert!(tale.was_admitted && !tale.has_ended && !tale.is_held);
                    assert_eq!(Some(vector), tale.vector.take(), "{request:?}: its vector, once, as when alone");
                }
                Event::Finished { request, reason, explanation } => {
                    check_explanation(&explanation, self.now);
                    self.seen.long_waits += u64::from(explanation.waited.total() > 30_000_000);
                    self.seen.waits_for_disk += u64::from(explanation.waited.micros(Wait::Disk) > 0);
                    let tale = self.tale(request);
                    assert!(!tale.has_ended);
                    let was_scored = tale.new.sampling.prompt_logprobs.is_some() && explanation.replayed > 0;
                    self.seen.scored_and_replayed += u64::from(was_scored);
                    let tale = self.tale(request);
                    assert_eq!(
                        (reason, tale.told.len()),
                        (tale.reason, tale.alone.len()),
                        "{request:?} ends where it ends alone"
                    );
                    assert_eq!(tale.vector, None, "{request:?} has told its vector");
                    (tale.has_ended, tale.has_finished) = (true, true);
                    let goal = tale.new.goal;
                    match reason {
                        FinishReason::Length => self.seen.finished_by_length += 1,
                        FinishReason::StopToken(_) => self.seen.finished_by_stop += 1,
                        FinishReason::Vector => {
                            let (was_cached, was_replayed) = (explanation.cached > 0, explanation.replayed > 0);
                            let (seen, cached, replayed) = match goal {
                                Goal::Tokens => panic!("{request:?} wants tokens"),
                                Goal::VectorOfLast => (
                                    &mut self.seen.vectors_of_last,
                                    Some(&mut self.seen.vectors_of_last_cached),
                                    &mut self.seen.vectors_of_last_replayed,
                                ),
                                Goal::VectorOfAll => {
                                    (&mut self.seen.vectors_of_all, None, &mut self.seen.vectors_of_all_replayed)
                                }
                            };
                            *seen += 1;
                            *replayed += u64::from(was_replayed);
                            match cached {
                                Some(cached) => *cached += u64::from(was_cached),
                                None => assert!(!was_cached, "{request:?}: KV of others is of no use to it"),
                            }
                        }
                    }
                }
                Event::Expired { request, explanation } => {
                    let now = self.now;
                    check_explanation(&explanation, now);
                    let tale = self.tale(request);
                    assert!(!tale.has_ended && tale.new.deadline.is_some_and(|deadline| deadline <= now));
                    tale.has_ended = true;
                    let was_held = tale.is_held;
                    self.seen.expired += 1;
                    self.seen.expired_while_held += u64::from(was_held);
                }
                Event::Refused { request, refusal } => {
                    self.check_never_fits(&self.tales[&request].new, &refusal);
                    self.tale(request).has_ended = true;
                    self.seen.refused_later += 1;
                }
            }
        }
    }

    /// Keeps an index from what is told, as a router of several servers does.
    pub(super) fn hear_of_cache(&mut self) {
        for (&group, site) in &mut self.sites {
            for change in self.core.cache_changes(group) {
                match change {
                    CacheChange::Stored { block, tokens, medium, .. } => {
                        assert_eq!(tokens.len(), self.config.block_size as usize);
                        assert!(site.findable.insert((medium, block)), "a block is stored once");
                        self.seen.blocks_stored += 1;
                    }
                    CacheChange::Removed { block, medium } => {
                        assert!(site.findable.remove(&(medium, block)), "what is removed was stored");
                        let seen = &mut self.seen;
                        *match medium {
                            Medium::Device => &mut seen.blocks_removed,
                            Medium::Host => &mut seen.host_blocks_removed,
                            Medium::Disk => &mut seen.disk_blocks_removed,
                        } += 1;
                    }
                }
            }
        }
    }
}

/// Every moment in the queue is explained, and no other.
fn check_explanation(explanation: &Explanation, now: Micros) {
    let Explanation { arrival, admitted, until, waited, .. } = explanation;
    assert!(*until <= now);
    match admitted {
        Some(admitted) if explanation.preempted.times + explanation.replayed == 0 => {
            assert_eq!(waited.total(), admitted.0 - arrival.0, "{explanation:?}");
        }
        Some(admitted) => {
            let (least, most) = (admitted.0 - arrival.0, until.0 - arrival.0);
            assert!((least..=most).contains(&waited.total()), "{explanation:?}");
        }
        None => assert_eq!(waited.total(), until.0 - arrival.0, "{explanation:?}"),
    }
    assert!(
        explanation.accepted <= explanation.drafted && explanation.accepted <= explanation.drawn,
        "{explanation:?}"
    );
    assert!(explanation.cached_host + explanation.cached_disk <= explanation.cached, "{explanation:?}");
    let missed = explanation.missed;
    let told = explanation.cached + missed.evicted + missed.too_short + explanation.new_tokens();
    assert_eq!(told, explanation.prompt, "each prompt token was found, or missed for one reason: {explanation:?}");
}
