//! What each tenant, and each user within a tenant, has been served, and whose turn it is by that.
//!
//! Whoever was served fewest tokens is next: deficit round robin without rounds. Two that always have requests waiting drift
//! apart by no more than what their dearest requests take. One that comes back after a pause starts level with the least
//! served of those who are there: a pause earns no credit. While nobody is there, that level is what the last one had, so that
//! nobody who was alone for long pays for it later. Those who have left are remembered, up to a bound.
//! Never here: requests, priorities, time.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// Who pays for a request, as numbers that the caller makes of an API key and of the field `user`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Party {
    /// Tenants share the server.
    pub tenant: u64,
    /// Users share what their tenant gets.
    pub user: u64,
}

/// So many tenants, and so many users of each, are remembered while they have no request.
const ABSENT_MAX: usize = 1_024;

/// Who was served how much. See the top of the file.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Shares {
    tenants: Accounts<Accounts<()>>,
}

/// Members of one level, each with its own inner level.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Accounts<I> {
    accounts: BTreeMap<u64, Account<I>>,
    present: BTreeSet<(u64, u64)>, // (served, member)
    absent: BTreeSet<(u64, u64)>,
    level: u64, // where a newcomer starts; never falls
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Account<I> {
    served: u64,
    requests: usize,
    inner: I,
}

impl<I: Default> Accounts<I> {
    fn enter(&mut self, member: u64) -> &mut I {
        let least = self.present.first().map_or(self.level, |&(served, _)| served.max(self.level));
        self.level = least;
        let account = self.accounts.entry(member).or_default();
        if account.requests == 0 {
            self.absent.remove(&(account.served, member));
            account.served = account.served.max(least);
            self.present.insert((account.served, member));
        }
        account.requests += 1;
        &mut account.inner
    }

    fn leave(&mut self, member: u64) -> &mut I {
        let account = self.accounts.get_mut(&member).expect("it entered");
        account.requests -= 1;
        if account.requests == 0 {
            self.present.remove(&(account.served, member));
            self.absent.insert((account.served, member));
            if self.present.is_empty() {
                self.level = self.level.max(account.served);
            }
        }
        &mut self.accounts.get_mut(&member).expect("looked at above").inner
    }

    /// Forgets the least served of those that are absent: it has least to remember.
    fn forget(&mut self) {
        if self.absent.len() > ABSENT_MAX {
            let (_, member) = self.absent.pop_first().expect("more than none");
            self.accounts.remove(&member);
        }
    }

    fn charge(&mut self, member: u64, tokens: i64) -> &mut I {
        let account = self.accounts.get_mut(&member).expect("who is charged has a request");
        let before = account.served;
        account.served = before.saturating_add_signed(tokens);
        let set = if account.requests > 0 { &mut self.present } else { &mut self.absent };
        set.remove(&(before, member));
        set.insert((account.served, member));
        &mut account.inner
    }
}

impl Shares {
    /// A party has one request more.
    pub(crate) fn enter(&mut self, party: Party) {
        self.tenants.enter(party.tenant).enter(party.user);
    }

    /// A party has one request less.
    pub(crate) fn leave(&mut self, party: Party) {
        let users = self.tenants.leave(party.tenant);
        users.leave(party.user);
        users.forget();
        self.tenants.forget();
    }

    /// A party with a request was served so many tokens more; fewer, if more were charged before than it drew.
    pub(crate) fn charge(&mut self, party: Party, tokens: i64) {
        self.tenants.charge(party.tenant, tokens).charge(party.user, tokens);
    }

    /// What a party with a request was served: its tenant, and the user within it.
    pub(crate) fn served(&self, party: Party) -> Served {
        let tenant = &self.tenants.accounts[&party.tenant];
        Served { tenant: tenant.served, user: tenant.inner.accounts[&party.user].served }
    }
}

/// See [`Shares::served`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Served {
    tenant: u64,
    user: u64,
}

/// Items of parties, the least served party's first.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(deserialize = "T: Ord + Deserialize<'de>"))]
pub(crate) struct Turn<T> {
    tenants: BTreeMap<u64, Users<T>>,
    order: BTreeSet<(u64, u64)>, // (served, tenant)
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(deserialize = "T: Ord + Deserialize<'de>"))]
struct Users<T> {
    items: BTreeMap<u64, BTreeSet<T>>,
    order: BTreeSet<(u64, u64)>, // (served, user)
}

impl<T> Default for Turn<T> {
    fn default() -> Self {
        Self { tenants: BTreeMap::new(), order: BTreeSet::new() }
    }
}

impl<T: Ord> Turn<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.tenants.is_empty()
    }

    /// The item whose turn it is.
    pub(crate) fn first(&self) -> Option<&T> {
        let users = &self.tenants[&self.order.first()?.1];
        let (_, user) = users.order.first().expect("a tenant without items is removed");
        users.items[user].first()
    }

    pub(crate) fn insert(&mut self, party: Party, served: Served, item: T) {
        self.order.insert((served.tenant, party.tenant));
        let users = self
            .tenants
            .entry(party.tenant)
            .or_insert_with(|| Users { items: BTreeMap::new(), order: BTreeSet::new() });
        users.order.insert((served.user, party.user));
        users.items.entry(party.user).or_default().insert(item);
    }

    pub(crate) fn len(&self) -> usize {
        self.tenants.values().flat_map(|users| users.items.values()).map(BTreeSet::len).sum()
    }

    /// Whether the item is there, under the right shares.
    pub(crate) fn contains(&self, party: Party, served: Served, item: &T) -> bool {
        self.order.contains(&(served.tenant, party.tenant))
            && self.tenants.get(&party.tenant).is_some_and(|users| {
                users.order.contains(&(served.user, party.user)) && users.items[&party.user].contains(item)
            })
    }

    /// Says whether the item was there.
    pub(crate) fn remove(&mut self, party: Party, served: Served, item: &T) -> bool {
        let Some(users) = self.tenants.get_mut(&party.tenant) else { return false };
        let Some(items) = users.items.get_mut(&party.user) else { return false };
        let was_there = items.remove(item);
        if items.is_empty() {
            users.items.remove(&party.user);
            users.order.remove(&(served.user, party.user));
        }
        if users.items.is_empty() {
            self.tenants.remove(&party.tenant);
            self.order.remove(&(served.tenant, party.tenant));
        }
        was_there
    }

    /// What a party was served has changed.
    pub(crate) fn reorder(&mut self, party: Party, before: Served, after: Served) {
        let Some(users) = self.tenants.get_mut(&party.tenant) else { return };
        if self.order.remove(&(before.tenant, party.tenant)) {
            self.order.insert((after.tenant, party.tenant));
        }
        if users.order.remove(&(before.user, party.user)) {
            users.order.insert((after.user, party.user));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn party(tenant: u64, user: u64) -> Party {
        Party { tenant, user }
    }

    /// Serves the one whose turn it is, `times` times; each item costs `cost(party)` tokens. Everybody always has items.
    fn serve(parties: &[Party], times: usize, cost: impl Fn(Party) -> i64) -> BTreeMap<Party, i64> {
        let (mut shares, mut turn) = (Shares::default(), Turn::default());
        for &party in parties {
            shares.enter(party);
            turn.insert(party, shares.served(party), party);
        }
        let mut got = BTreeMap::new();
        for _ in 0..times {
            let next = *turn.first().expect("all stay");
            let before = shares.served(next);
            shares.charge(next, cost(next));
            turn.reorder(next, before, shares.served(next));
            *got.entry(next).or_default() += cost(next);
        }
        got
    }

    #[test]
    fn tenants_get_the_same_whatever_their_requests_cost_and_however_many_users_they_have() {
        let parties = [party(1, 1), party(2, 1), party(2, 2), party(2, 3), party(3, 1)];
        let cost = |party: Party| i64::try_from(party.tenant * 100 + party.user).expect("small");
        let got = serve(&parties, 10_000, cost);
        let of_tenant =
            |tenant| got.iter().filter(|(party, _)| party.tenant == tenant).map(|(_, got)| got).sum::<i64>();
        for (one, other) in [(1, 2), (2, 3), (1, 3)] {
            assert!((of_tenant(one) - of_tenant(other)).abs() <= 303, "{got:?}");
        }
        for (one, other) in [(1, 2), (2, 3)] {
            assert!((got[&party(2, one)] - got[&party(2, other)]).abs() <= 203, "{got:?}");
        }
    }

    #[test]
    fn a_pause_earns_no_credit_and_leaving_pays_no_debt() {
        let mut shares = Shares::default();
        shares.enter(party(1, 1));
        shares.charge(party(1, 1), 1_000);
        shares.enter(party(2, 1));
        assert_eq!(shares.served(party(2, 1)).tenant, 1_000, "who comes late starts level with the least served");
        shares.charge(party(2, 1), 500);
        shares.leave(party(2, 1));
        shares.enter(party(2, 1));
        assert_eq!(shares.served(party(2, 1)).tenant, 1_500, "who leaves and comes back has had what it had");
    }

    #[test]
    fn who_was_alone_for_long_pays_nobody_for_it_later() {
        let mut shares = Shares::default();
        shares.enter(party(1, 1));
        shares.charge(party(1, 1), 1_000_000_000);
        shares.leave(party(1, 1));
        shares.enter(party(2, 1));
        shares.charge(party(2, 1), 70);
        shares.enter(party(1, 1));
        let [one, other] = [1, 2].map(|tenant| shares.served(party(tenant, 1)).tenant);
        assert!(one.abs_diff(other) <= 70, "{one} and {other}");
        shares.enter(party(1, 2));
        let [one, other] = [1, 2].map(|user| shares.served(party(1, user)).user);
        assert!(one.abs_diff(other) <= 70, "{one} and {other}");
    }

    #[test]
    fn ten_thousand_users_that_left_are_not_all_remembered() {
        let mut shares = Shares::default();
        for user in 0..10_000 {
            shares.enter(party(user % 3_000, user));
            shares.charge(party(user % 3_000, user), 5);
            shares.leave(party(user % 3_000, user));
        }
        assert!(shares.tenants.accounts.len() <= ABSENT_MAX + 1);
        assert!(shares.tenants.accounts.values().all(|tenant| tenant.inner.accounts.len() <= ABSENT_MAX + 1));
    }

    #[test]
    fn what_is_removed_leaves_nothing_behind() {
        let (mut shares, mut turn) = (Shares::default(), Turn::default());
        for user in 0..3 {
            shares.enter(party(1, user));
            turn.insert(party(1, user), shares.served(party(1, user)), user);
        }
        for user in 0..3 {
            assert!(turn.remove(party(1, user), shares.served(party(1, user)), &user));
            assert!(!turn.remove(party(1, user), shares.served(party(1, user)), &user));
        }
        assert!(turn.is_empty() && turn.order.is_empty() && turn.first().is_none());
    }
}
