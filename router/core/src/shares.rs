//! What each tenant, and each user within a tenant, has been served, and whose turn it is by that.
//!
//! Whoever was served fewest tokens is next: deficit round robin without rounds. Two that always have requests waiting drift
//! apart by no more than what their dearest requests take. One for whom nothing waited, be it that it has nothing or that all it has
//! runs, starts level with the least served of those who wait: a pause earns no credit. While nobody waits, that level is what the
//! last one had, so that nobody who was alone for long pays for it later. Those who have left are remembered, up to a bound.
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
    waiting: BTreeSet<(u64, u64)>, // (served, member) of those for whom a request waits
    absent: BTreeSet<(u64, u64)>,  // of those who have none
    level: u64,                    // where a newcomer starts; never falls
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Account<I> {
    served: u64,
    requests: usize,
    waiting: usize, // of these
    inner: I,
}

impl<I: Default> Accounts<I> {
    fn enter(&mut self, member: u64) -> &mut I {
        let account = self.accounts.entry(member).or_default();
        if account.requests == 0 {
            self.absent.remove(&(account.served, member));
        }
        account.requests += 1;
        &mut account.inner
    }

    fn wait(&mut self, member: u64) -> &mut I {
        self.level = self.waiting.first().map_or(self.level, |&(served, _)| served.max(self.level));
        let account = self.accounts.get_mut(&member).expect("it entered");
        if account.waiting == 0 {
            account.served = account.served.max(self.level);
            self.waiting.insert((account.served, member));
        }
        account.waiting += 1;
        &mut account.inner
    }

    fn wait_no_more(&mut self, member: u64) -> &mut I {
        let account = self.accounts.get_mut(&member).expect("it entered");
        account.waiting -= 1;
        if account.waiting == 0 {
            self.waiting.remove(&(account.served, member));
            if self.waiting.is_empty() {
                self.level = self.level.max(account.served);
            }
        }
        &mut account.inner
    }

    fn leave(&mut self, member: u64) -> &mut I {
        let account = self.accounts.get_mut(&member).expect("it entered");
        account.requests -= 1;
        assert!(account.waiting <= account.requests, "who leaves does not wait");
        if account.requests == 0 {
            self.absent.insert((account.served, member));
        }
        &mut account.inner
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
        let set = match (account.requests, account.waiting) {
            (0, _) => Some(&mut self.absent),
            (_, 0) => None,
            _ => Some(&mut self.waiting),
        };
        if let Some(set) = set {
            set.remove(&(before, member));
            set.insert((account.served, member));
        }
        &mut account.inner
    }
}

impl Shares {
    /// A party has one request more, which waits.
    pub(crate) fn enter(&mut self, party: Party) {
        self.tenants.enter(party.tenant).enter(party.user);
        self.wait(party);
    }

    /// One of a party's requests waits again.
    pub(crate) fn wait(&mut self, party: Party) {
        self.tenants.wait(party.tenant).wait(party.user);
    }

    /// One of a party's requests waits no more.
    pub(crate) fn wait_no_more(&mut self, party: Party) {
        self.tenants.wait_no_more(party.tenant).wait_no_more(party.user);
    }

    /// A party has one request less, which did not wait any more.
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

impl Served {
    /// Where users do not count.
    pub(crate) fn of_tenant(self) -> Self {
        Self { user: 0, ..self }
    }
}

impl Party {
    /// Where users do not count.
    pub(crate) fn of_tenant(self) -> Self {
        Self { user: 0, ..self }
    }
}

/// Items of parties: the least served tenant's first, of its users the least served one's. Of equals the one with the first item.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(deserialize = "T: Ord + Deserialize<'de>"))]
pub(crate) struct Turn<T> {
    tenants: BTreeMap<u64, (u64, Users<T>)>, // with what each was served
    order: BTreeSet<(u64, T, u64)>,          // served, the item whose turn it is, the tenant
}

/// Those of one tenant.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(deserialize = "T: Ord + Deserialize<'de>"))]
struct Users<T> {
    users: BTreeMap<u64, (u64, BTreeSet<T>)>, // with what each was served
    order: BTreeSet<(u64, T, u64)>,           // served, the first item, the user
}

impl<T> Default for Turn<T> {
    fn default() -> Self {
        Self { tenants: BTreeMap::new(), order: BTreeSet::new() }
    }
}

impl<T> Default for Users<T> {
    fn default() -> Self {
        Self { users: BTreeMap::new(), order: BTreeSet::new() }
    }
}

impl<T: Ord + Copy> Users<T> {
    fn first(&self) -> Option<T> {
        self.order.first().map(|&(_, item, _)| item)
    }

    /// Changes a user's items, and puts it where it belongs then.
    fn change<R>(&mut self, user: u64, served: u64, change: impl FnOnce(&mut BTreeSet<T>) -> R) -> R {
        let (was, items) = self.users.entry(user).or_insert_with(|| (served, BTreeSet::new()));
        if let Some(&first) = items.first() {
            self.order.remove(&(*was, first, user));
        }
        *was = served;
        let result = change(items);
        match items.first() {
            Some(&first) => drop(self.order.insert((served, first, user))),
            None => drop(self.users.remove(&user)),
        }
        result
    }
}

impl<T: Ord + Copy> Turn<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.tenants.is_empty()
    }

    /// The item whose turn it is.
    pub(crate) fn first(&self) -> Option<&T> {
        self.order.first().map(|(_, item, _)| item)
    }

    pub(crate) fn insert(&mut self, party: Party, served: Served, item: T) {
        self.change(party, served, |items| items.insert(item));
    }

    /// Says whether the item was there.
    pub(crate) fn remove(&mut self, party: Party, served: Served, item: &T) -> bool {
        self.change(party, served, |items| items.remove(item))
    }

    /// What a party was served has changed.
    pub(crate) fn reorder(&mut self, party: Party, served: Served) {
        if self.tenants.get(&party.tenant).is_some_and(|(_, users)| users.users.contains_key(&party.user)) {
            self.change(party, served, |_| ());
        } else if self.tenants.contains_key(&party.tenant) {
            self.change_tenant(party.tenant, served.tenant, |_| ());
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.tenants.values().flat_map(|(_, users)| users.users.values()).map(|(_, items)| items.len()).sum()
    }

    /// Each tenant's next item.
    pub(crate) fn firsts(&self) -> impl Iterator<Item = &T> {
        self.order.iter().map(|(_, first, _)| first)
    }

    /// Whether the item is there, under the right shares.
    pub(crate) fn contains(&self, party: Party, served: Served, item: &T) -> bool {
        let Some((of_tenant, users)) = self.tenants.get(&party.tenant) else { return false };
        let Some((of_user, items)) = users.users.get(&party.user) else { return false };
        let (Some(turn), Some(&first)) = (users.first(), items.first()) else { return false };
        (*of_tenant, *of_user) == (served.tenant, served.user)
            && self.order.contains(&(served.tenant, turn, party.tenant))
            && users.order.contains(&(served.user, first, party.user))
            && items.contains(item)
    }

    fn change<R>(&mut self, party: Party, served: Served, change: impl FnOnce(&mut BTreeSet<T>) -> R) -> R {
        self.change_tenant(party.tenant, served.tenant, |users| users.change(party.user, served.user, change))
    }

    /// Changes a tenant's users, and puts it where it belongs then.
    fn change_tenant<R>(&mut self, tenant: u64, served: u64, change: impl FnOnce(&mut Users<T>) -> R) -> R {
        let (was, users) = self.tenants.entry(tenant).or_insert_with(|| (served, Users::default()));
        if let Some(turn) = users.first() {
            self.order.remove(&(*was, turn, tenant));
        }
        *was = served;
        let result = change(users);
        match users.first() {
            Some(turn) => drop(self.order.insert((served, turn, tenant))),
            None => drop(self.tenants.remove(&tenant)),
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn party(tenant: u64, user: u64) -> Party {
        Party { tenant, user }
    }

    fn end(shares: &mut Shares, party: Party) {
        shares.wait_no_more(party);
        shares.leave(party);
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
            shares.charge(next, cost(next));
            turn.reorder(next, shares.served(next));
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
        end(&mut shares, party(2, 1));
        shares.enter(party(2, 1));
        assert_eq!(shares.served(party(2, 1)).tenant, 1_500, "who leaves and comes back has had what it had");
    }

    #[test]
    fn who_has_a_request_that_runs_and_none_that_waits_saves_nothing_up() {
        let mut shares = Shares::default();
        for tenant in [1, 2] {
            shares.enter(party(tenant, 1));
        }
        shares.wait_no_more(party(1, 1)); // it runs for long
        shares.charge(party(2, 1), 1_000_000);
        shares.enter(party(1, 1));
        assert_eq!(shares.served(party(1, 1)).tenant, 1_000_000);
    }

    #[test]
    fn who_was_alone_for_long_pays_nobody_for_it_later() {
        let mut shares = Shares::default();
        shares.enter(party(1, 1));
        shares.charge(party(1, 1), 1_000_000_000);
        end(&mut shares, party(1, 1));
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
            end(&mut shares, party(user % 3_000, user));
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
