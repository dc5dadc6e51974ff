//! What happens in a world: requests come and go, workers compute, die and lie.

use super::*;

impl World {
    pub(super) fn submit(&mut self) {
        let id = RequestId(self.tales.len() as u64 + self.seen.refused_at_once);
        let earlier: Vec<&Tale> = self.tales.values().filter(|tale| tale.has_finished).collect();
        let text = |tale: &&Tale| ([&tale.new.prompt[..], &tale.alone].concat(), tale.new.scope.clone());
        let earlier = self.random.pick(&earlier).map(text);
        let mut new = requests::request(&mut self.random, id, self.now, &self.texts, earlier, &self.config);
        let model::Alone { tokens: alone, scores, vector, reason } =
            model::alone(&new, &self.config.kinds, self.config.max_model_len);
        if self.random.once_in(10) && new.goal == Goal::Tokens {
            let before = self.random.within(0..=alone.len() as u32 - 1);
            new.generated = alone[..before as usize].to_vec(); // from an earlier life of the engine
            let all = scores.len() as u32;
            new.scored = if before > 0 { all } else { all / 2 };
        }
        let queue_was_full = self.core.counts().waiting >= self.config.max_waiting;
        match self.core.submit(new.clone()) {
            Ok(()) => {
                self.seen.requests += 1;
                let told = new.generated.clone();
                let scores = scores.into_iter().skip(new.scored as usize).collect();
                let tale = Tale {
                    new,
                    alone,
                    scores,
                    vector,
                    reason,
                    told,
                    was_admitted: false,
                    is_held: false,
                    has_ended: false,
                    has_finished: false,
                };
                self.tales.insert(id, tale);
            }
            Err(refusal) => {
                self.seen.refused_at_once += 1;
                match refusal {
                    Refusal::QueueFull { .. } => assert!(queue_was_full),
                    refusal => self.check_never_fits(&new, &refusal),
                }
            }
        }
    }

    /// Many come at once, and some wait for long.
    pub(super) fn rush(&mut self) {
        for _ in 0..self.random.within(20..=60) {
            self.submit();
        }
        self.seen.rushes += 1;
        self.seen.long_queues += u64::from(self.core.counts().waiting >= 100);
    }

    pub(super) fn check_never_fits(&self, new: &NewRequest, refusal: &Refusal) {
        let tokens = match new.goal {
            Goal::Tokens => (new.prompt.len() as u32 + new.stop.max_tokens).min(self.config.max_model_len) - 1,
            Goal::VectorOfLast | Goal::VectorOfAll => new.prompt.len() as u32,
        };
        let needed = kinds::blocks_needed(&self.config, tokens);
        let blocks = self.sites.values().map(|site| site.blocks as usize).max().expect("a world has groups");
        assert!(needed > blocks);
        assert_eq!(*refusal, Refusal::NeverFits { needed, blocks });
    }

    pub(super) fn abort(&mut self) {
        if let Some(id) = self.any_live() {
            let running = self.core.counts().running;
            self.core.abort(id);
            self.seen.aborted_while_running += (running - self.core.counts().running) as u64;
            self.tale(id).has_ended = true;
        }
    }

    pub(super) fn finish(&mut self) {
        if let Some(id) = self.any_live() {
            self.core.finish(id);
            self.seen.finished_from_outside += 1;
            self.tale(id).has_ended = true;
        }
    }

    /// Somebody has found out what a request must draw: all of it, or a part.
    pub(super) fn force(&mut self) {
        let Some(id) = self.any_live() else { return };
        let Self { core, random, tales, .. } = self;
        let Tale { new, alone, told, .. } = &tales[&id];
        if new.masked && !new.sampling.has_penalties() && new.sampling.logprobs.is_none() {
            let from = random.within(0..=told.len() as u32);
            let count = random.within(0..=alone.len() as u32 - from);
            core.force(id, from, alone[from as usize..][..count as usize].to_vec());
        }
    }

    /// Of those that wait, that is: the others run on.
    pub(super) fn hold(&mut self) {
        if let Some(id) = self.any_live() {
            let held = self.core.counts().held;
            self.core.hold(id);
            let is_new = self.core.counts().held > held;
            self.seen.held += u64::from(is_new);
            self.tale(id).is_held |= is_new;
        }
    }

    /// Whether it runs or waits.
    pub(super) fn withdraw(&mut self) {
        if let Some(id) = self.any_live() {
            let trust = if self.random.once_in(2) { Trust::Full } else { Trust::None };
            let before = self.core.counts();
            self.core.withdraw(id, trust);
            let counts = self.core.counts();
            let is_new = counts.held > before.held;
            assert_eq!(counts.running + counts.waiting + counts.held, before.running + before.waiting + before.held);
            assert!(is_new || self.tale(id).is_held, "{id:?} is kept back, wherever it was");
            let seen =
                if trust == Trust::Full { &mut self.seen.withdrawn } else { &mut self.seen.withdrawn_without_trust };
            *seen += u64::from(counts.running < before.running);
            self.seen.held += u64::from(is_new);
            self.tale(id).is_held = true;
        }
    }

    pub(super) fn release(&mut self) {
        if let Some(id) = self.any_live() {
            self.release_one(id);
        }
    }

    pub(super) fn release_one(&mut self, id: RequestId) {
        self.core.release(id);
        self.seen.released += u64::from(std::mem::take(&mut self.tale(id).is_held));
    }

    /// Keeps the start of a text for a while, or no longer.
    pub(super) fn pin(&mut self) {
        let id = PinId(u64::from(self.random.within(0..=5)));
        if self.random.once_in(4) {
            return self.core.unpin(id);
        }
        let new = requests::pin(&mut self.random, id, self.now, &self.texts);
        let before = self.core.counts();
        match self.core.pin(new.clone()) {
            Ok(()) => {
                let smallest = self.sites.values().map(|site| site.blocks).min().expect("a world has groups");
                let bound = smallest as usize * self.config.pin_share as usize / 100;
                let pinned = self.core.counts().blocks_pinned;
                assert!(pinned <= bound.max(before.blocks_pinned), "{pinned} blocks are pinned, of {bound}");
                self.seen.pins += 1;
            }
            Err(refusal) => {
                assert_eq!(self.core.counts(), before);
                match refusal {
                    PinRefusal::TooShort { .. } => {
                        assert!(new.tokens.len() < self.config.block_size as usize);
                    }
                    PinRefusal::TooMany { needed, left } => assert!(needed > left),
                    PinRefusal::NoCache => {
                        let none = Kind::State { mode: StateMode::None };
                        assert!(!self.config.prefix_caching || self.config.kinds.contains(&none));
                    }
                    PinRefusal::TooLate { ago } => panic!("{new:?} would end {ago} us ago"),
                }
                self.seen.pins_refused += 1;
            }
        }
    }

    pub(super) fn kill(&mut self) {
        let group = self.any_group();
        self.seen.kills += 1;
        self.seen.kills_in_flight += u64::from(self.core.in_flight(group) > 0);
        self.lose(group);
    }

    pub(super) fn lose(&mut self, group: GroupId) {
        let site = self.site(group);
        site.findable.clear();
        let mut had_drafts = false;
        if let Some(worker) = site.worker.take() {
            had_drafts = worker.has_drafts();
            worker.die(&mut self.host);
        }
        self.seen.kills_with_drafts += u64::from(had_drafts);
        self.core.worker_lost(group);
    }

    /// A group without a worker never gets one again. One group stays.
    pub(super) fn retire(&mut self) {
        let group = self.any_group();
        if self.sites.len() > 1 && self.site(group).worker.is_none() {
            self.core.remove_group(group);
            self.sites.remove(&group);
            self.seen.retired_groups += 1;
        }
    }

    pub(super) fn revive(&mut self) {
        let group = self.any_group();
        self.revive_group(group);
    }

    pub(super) fn revive_group(&mut self, group: GroupId) {
        if self.site(group).worker.is_some() {
            return;
        }
        let shrinks = self.faults.shrinks && self.random.once_in(3);
        let config = self.config.clone();
        let reaches_host = !self.random.once_in(5);
        let misses = self.faults.misses;
        let site = self.site(group);
        site.blocks -= u32::from(shrinks) * (site.blocks / 4);
        let blocks = site.blocks;
        site.reaches_host = reaches_host;
        site.worker = Some(Worker::new(blocks, &config, site.copy_us, misses));
        self.core.worker_back(group, blocks, reaches_host);
    }

    /// Results come that cannot be right: the core says so and changes nothing, and the worker is replaced.
    pub(super) fn garble(&mut self) {
        let group = self.any_group();
        let kind = self.random.within(0..=4);
        let may_lack_tokens = self.tales.values().any(|tale| tale.new.masked);
        let Some(worker) = &mut self.site(group).worker else { return };
        let Some(mut results) = worker.results.pop_front() else { return };
        match kind {
            0 => results.step = results.step.next(),
            1 => results.draws.push(None),
            4 if self.random.once_in(2) && !results.vectors.is_empty() => drop(results.vectors.pop()),
            4 => results.vectors.push(Box::default()),
            2 | 3 if results.draws.is_empty() => results.draws.push(None),
            2 => drop(results.draws.pop()),
            _ if may_lack_tokens => results.draws.push(None), // a missing token may be right
            _ => results.draws[0] = if results.draws[0].is_some() { None } else { Some(requests::row_result()) },
        }
        let before = self.core.counts();
        self.core.commit(group, results).expect_err("garbled results are refused");
        assert_eq!(self.core.counts(), before);
        assert_eq!(self.core.events().count(), 0);
        self.seen.garbage += 1;
        self.lose(group);
    }

    pub(super) fn plan(&mut self) {
        let group = self.any_group();
        self.plan_group(group);
    }

    pub(super) fn plan_group(&mut self, group: GroupId) -> bool {
        let was_in_flight = self.core.in_flight(group);
        let Some(plan) = self.core.plan(group, self.now) else { return false };
        let tokens: u32 = plan.rows.iter().map(|row| row.count).sum();
        assert!(tokens <= self.config.token_budget);
        let seen = &mut self.seen;
        seen.steps_ahead += u64::from(was_in_flight == 1);
        seen.copies += plan.copies.len() as u64;
        kinds::note(seen, &self.config.kinds, &plan);
        seen.saves_alone += u64::from(plan.rows.is_empty() && plan.loads.is_empty());
        seen.loads_spread += u64::from(plan.rows.is_empty() && !plan.loads.is_empty());
        for row in &plan.rows {
            seen.unknown_tokens += u64::from(row.known < row.count);
            seen.chunks += u64::from(!row.samples && !row.pools);
            seen.scores_in_chunks += u64::from(row.scores > 0 && !row.samples);
            seen.scored_where_known += u64::from(row.scores > 0 && row.start > 0);
            seen.embeds_in_chunks += u64::from(row.embeds > 0 && !row.samples);
            seen.embeds_before_tokens += u64::from((1..row.count).contains(&row.embeds));
            seen.drafts_in_company += u64::from(row.drafts > 0 && plan.rows.len() > 1);
            let takes_blocks = plan.appends.iter().any(|append| append.slot == row.slot);
            seen.drafts_taking_blocks += u64::from(row.drafts > 0 && takes_blocks);
            assert!(row.drafts <= self.config.drafts_max);
            assert!(row.drafts == 0 || row.samples && !row.masked && row.known == row.count, "{row:?}");
        }
        for admit in &plan.admits {
            seen.histories += u64::from(!admit.history.is_empty());
            seen.histories_with_output += u64::from(admit.history.len() > admit.prompt_len as usize);
            seen.suppressed += u64::from(!admit.suppressed.is_empty());
        }
        let site = self.sites.get_mut(&group).expect("plans are made for groups that are there");
        assert!(site.reaches_host || (plan.saves.is_empty() && plan.loads.is_empty()), "it reaches no host's memory");
        let worker = site.worker.as_mut().expect("plans are made for workers that live");
        let tales = &self.tales;
        worker.receive(plan, |request| (tales[&request].new.scope.clone(), tales[&request].new.goal));
        true
    }

    pub(super) fn work(&mut self) {
        let group = self.any_group();
        self.work_group(group);
    }

    pub(super) fn work_group(&mut self, group: GroupId) {
        let Self { sites, random, host, .. } = self;
        if let Some(worker) = &mut sites.get_mut(&group).expect("a group of this world").worker {
            worker.work(random, host);
        }
    }

    pub(super) fn commit(&mut self) {
        let group = self.any_group();
        self.commit_group(group);
    }

    pub(super) fn commit_group(&mut self, group: GroupId) {
        let results = self.site(group).worker.as_mut().and_then(|worker| worker.results.pop_front());
        if let Some(results) = results {
            if self.now.0.is_multiple_of(2) {
                self.core.clock(self.now);
            }
            self.core.commit(group, results).expect("a worker that lives answers rightly");
        }
    }
}
