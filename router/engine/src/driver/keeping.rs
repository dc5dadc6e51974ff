//! Prompts whose clients have asked to keep them in the prefix cache for longer: the core's pins.
//!
//! To keep a prompt is a wish and no promise. Where there is no room for a new one, those go whose time ends first, of the
//! same tenant before those of others; of another one only while that keeps more than who asks. A core that begins anew after a bug knows the prompts of live requests only.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::{BuildHasher, RandomState},
};

use pelton_core::{Micros, NewPin, PinId, PinRefusal};
use pelton_record::RecordedCore;

/// How many one wish may end, so that what it costs the engine has a bound.
const GIVEN_UP_MAX: usize = 16;

/// See the top of the file.
#[derive(Debug, Default)]
pub(super) struct Keeping {
    names: RandomState,
    ends: BTreeSet<(Micros, PinId)>, // those that have not ended, and perhaps some that have
    kept: HashMap<PinId, Kept>,
    tokens: BTreeMap<u64, usize>, // that each tenant keeps
    /// Wishes that could not be fulfilled.
    pub(super) refused: u64,
}

#[derive(Debug, Clone, Copy)]
struct Kept {
    until: Micros,
    tenant: u64,
    tokens: usize,
}

impl Keeping {
    /// What is kept of an earlier core is unknown to the next.
    pub(super) fn begin_anew(&mut self) {
        self.ends.clear();
        self.kept.clear();
        self.tokens.clear();
    }

    /// Asks the core to keep a prompt, at most the first `tokens_max` tokens of it; what is kept already is kept until the
    /// later time. The pin's own id does not matter.
    pub(super) fn keep(&mut self, core: &mut RecordedCore, pin: NewPin, tokens_max: usize, now: Micros) {
        self.forget_ended(now);
        let tokens = if pin.tokens.len() > tokens_max { pin.tokens[..tokens_max].into() } else { pin.tokens };
        let pin = NewPin { tokens, ..pin };
        let id = PinId(self.names.hash_one((&pin.tokens, &pin.scope, pin.party.tenant)));
        let until = self.kept.get(&id).map_or(pin.until, |kept| kept.until.max(pin.until));
        let pin = NewPin { id, until, ..pin };
        for _ in 0..=GIVEN_UP_MAX {
            match core.pin(pin.clone()) {
                Ok(()) => return self.note(id, Kept { until, tenant: pin.party.tenant, tokens: pin.tokens.len() }),
                Err(PinRefusal::TooMany { .. }) => {
                    let Some(given_up) = self.first_to_go(id, pin.party.tenant, pin.tokens.len()) else { break };
                    core.unpin(given_up);
                    self.forget(given_up);
                }
                Err(_) => break,
            }
        }
        self.refused += 1;
    }

    fn first_to_go(&self, besides: PinId, tenant: u64, tokens: usize) -> Option<PinId> {
        let of = |tenant| {
            let mut others = self.ends.iter().map(|&(_, id)| id).filter(|&id| id != besides);
            others.find(|id| self.kept[id].tenant == tenant)
        };
        let greediest = || {
            let (tokens_of, other) = self.tokens.iter().map(|(&other, &tokens)| (tokens, other)).max()?;
            (tokens_of > tokens + self.tokens.get(&tenant).unwrap_or(&0)).then_some(other)
        };
        of(tenant).or_else(|| of(greediest()?))
    }

    fn note(&mut self, id: PinId, kept: Kept) {
        self.forget(id);
        *self.tokens.entry(kept.tenant).or_default() += kept.tokens;
        self.ends.insert((kept.until, id));
        self.kept.insert(id, kept);
    }

    fn forget(&mut self, id: PinId) {
        let Some(Kept { until, tenant, tokens }) = self.kept.remove(&id) else { return };
        self.ends.remove(&(until, id));
        let left = self.tokens.get_mut(&tenant).expect("it keeps this");
        *left -= tokens;
        if *left == 0 {
            self.tokens.remove(&tenant);
        }
    }

    fn forget_ended(&mut self, now: Micros) {
        while let Some(&(until, id)) = self.ends.first()
            && until <= now
        {
            self.forget(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pelton_core::{CacheScope, Core, CoreConfig, GroupId, Limits, Party, TokenId};

    use super::*;

    const NOW: Micros = Micros(5);

    /// A core with 16 blocks of 4 tokens, of which pins may name 8 and a tenant's `of_tenant` percent of these.
    fn core(of_tenant: u32) -> RecordedCore {
        let limits = Limits {
            slots: 4,
            tokens: 64,
            appends: 64,
            copies: 4,
            saves: 0,
            loads: 0,
            states: 0,
            biases: 4,
            suppressed: 4,
            history: 64,
            scores: 8,
            embeds: 0,
        };
        let bounds = CoreConfig::new(limits, 4, 64, [1, 2]);
        let mut core = Core::new(CoreConfig { pin_share: 50, tenant_cache_share: of_tenant, ..bounds });
        core.add_group(GroupId(0), 16, false);
        RecordedCore::new(core, None)
    }

    fn prompt(first: TokenId, blocks: u32, tenant: u64, until: u64) -> NewPin {
        NewPin {
            id: PinId(0),
            tokens: (first..first + blocks * 4).collect::<Arc<[TokenId]>>(),
            scope: CacheScope::default(),
            party: Party { tenant, user: 0 },
            until: Micros(until),
        }
    }

    fn pinned(core: &RecordedCore) -> (usize, usize) {
        (core.counts().pins, core.counts().blocks_pinned)
    }

    #[test]
    fn a_prompt_that_is_asked_for_again_is_kept_once_and_for_longer() {
        let (mut core, mut keeping) = (core(100), Keeping::default());
        keeping.keep(&mut core, prompt(0, 3, 1, 100), 32, NOW);
        keeping.keep(&mut core, prompt(0, 3, 1, 200), 32, NOW);
        keeping.keep(&mut core, prompt(0, 3, 1, 150), 32, NOW);
        assert_eq!(pinned(&core), (1, 3));
        core.tick(Micros(199));
        assert_eq!(pinned(&core), (1, 3), "a later wish for less takes nothing away");
        core.tick(Micros(200));
        assert_eq!(pinned(&core), (0, 0));
    }

    #[test]
    fn a_new_wish_takes_the_place_of_what_ends_first_of_its_tenant_before_others() {
        let (mut core, mut keeping) = (core(100), Keeping::default());
        keeping.keep(&mut core, prompt(0, 2, 1, 100), 32, NOW);
        keeping.keep(&mut core, prompt(100, 3, 2, 300), 32, NOW);
        keeping.keep(&mut core, prompt(200, 3, 2, 200), 32, NOW);
        assert_eq!(pinned(&core), (3, 8));
        keeping.keep(&mut core, prompt(300, 3, 2, 400), 32, NOW);
        assert_eq!(pinned(&core), (3, 8), "of the second tenant, what ended at 200");
        core.tick(Micros(200));
        assert_eq!(pinned(&core), (2, 6), "what ended at 100 was still there");
        keeping.keep(&mut core, prompt(400, 4, 1, 500), 32, Micros(200));
        assert_eq!((pinned(&core), keeping.refused), ((2, 7), 0), "of another tenant, for want of one's own");
        keeping.keep(&mut core, prompt(500, 4, 3, 600), 32, Micros(200));
        assert_eq!((pinned(&core), keeping.refused), ((2, 7), 1), "nobody keeps more than that would be");
        keeping.keep(&mut core, prompt(500, 3, 3, 600), 32, Micros(200));
        assert_eq!((pinned(&core), keeping.refused), ((2, 6), 1), "of the tenant that keeps most");
    }

    #[test]
    fn a_prompt_that_is_too_long_is_kept_as_far_as_there_is_room() {
        let (mut core, mut keeping) = (core(50), Keeping::default());
        keeping.keep(&mut core, prompt(0, 9, 1, 100), 16, NOW);
        assert_eq!((pinned(&core), keeping.refused), ((1, 4), 0));
    }

    #[test]
    fn a_wish_that_cannot_be_fulfilled_is_counted() {
        let (mut core, mut keeping) = (core(100), Keeping::default());
        keeping.keep(&mut core, NewPin { tokens: [1, 2, 3].into(), ..prompt(0, 1, 1, 100) }, 32, NOW);
        assert_eq!((pinned(&core), keeping.refused), ((0, 0), 1), "it fills no block");
    }
}
