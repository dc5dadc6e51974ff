"""Plants bugs in a copy of the core, one at a time, and sees whether its tests catch each of them: `make mutants`.

    python router/core/mutants.py [NAME ...]
    python router/core/mutants.py --check    only whether all of them still apply: a part of `make lint`

A mutant that survives is a hole in the tests. One that no longer applies, or does not compile, fails too: then it is to be
written anew. A run takes some minutes: each mutant is compiled and tested.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEST_TIMEOUT_S = 900


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str  # below router/core/src
    is_: str
    was: str  # what a careless hand would have written


MUTANTS = [
    Mutant(
        "what is certain waits for nothing",
        "epoch.rs",
        "if self.draws > 0 && request.is_worth_a_pause(expected) {",
        "if self.draws > 9 && request.is_worth_a_pause(expected) {",
    ),
    Mutant(
        "certain tokens come before what is in flight",
        "commit.rs",
        "if row.samples && !is_unsampled && epoch.running(row.slot).draws == 0 {",
        "if row.samples && !is_unsampled {",
    ),
    Mutant(
        "a run begins where it is told",
        "forced.rs",
        "run.tokens.drain(..drawn.len().min(run.tokens.len()));",
        "",
    ),
    Mutant(
        "tokens that are told take no room in a frame",
        "next_step.rs",
        "suppressed: count(suppressed + request.sampling.told.len()),",
        "suppressed: count(suppressed),",
    ),
    Mutant(
        "scores cost nothing",
        "cost.rs",
        "rows: self.rows + u64::from(scores), ..self",
        "rows: self.rows + u64::from(scores) * 0, ..self",
    ),
    Mutant(
        "a chunk takes as long as if nothing of it were scored",
        "next_step.rs",
        "self.work.with_row(start, count).with_scores(request.scores_in(start, start + count));",
        "self.work.with_row(start, count).with_scores(request.scores_in(start, start));",
    ),
    Mutant(
        "those that wait to be scored use up the looks",
        "admission.rs",
        "Choice::SetAside(Wait::Step)",
        "Choice::PassOver(Wait::Step)",
    ),
    Mutant(
        "a long prompt that is scored comes last",
        "schedule.rs",
        "_ if next.is_long(ahead) && !request.has_short_rows() =>",
        "_ if next.is_long(ahead) =>",
    ),
    Mutant(
        "others wait for what one computes that is scored",
        "epoch.rs",
        "running.committed < request.prompt_len && !request.is_to_be_scored();",
        "running.committed < request.prompt_len;",
    ),
    Mutant(
        "a turn ends however short it was",
        "turns.rs",
        "took >= TURN_US && took",
        "took",
    ),
    Mutant(
        "a turn is short beside what computing its request again takes",
        "turns.rs",
        ".saturating_mul(TURN_FACTOR)",
        "",
    ),
    Mutant(
        "a tenant gives up slots until it has none",
        "turns.rs",
        "candidates.retain(|(_, running)| slots[&running.tenant] > has);",
        "let _ = has;",
    ),
    Mutant(
        "what several hold that give up their slots stays held",
        "blocks/hold.rs",
        "holders[block.index()] += 1;",
        "holders[block.index()] = 1;",
    ),
    Mutant(
        "a deadline takes a turn away",
        "queue.rs",
        "let urgent = urgent.take(URGENT_LOOKED_AT_MAX)",
        "let urgent = urgent.take(0 * URGENT_LOOKED_AT_MAX)",
    ),
    Mutant(
        "what was loading when it was forgotten is found",
        "withdrawal.rs",
        "running.hidden = found;",
        "let _ = found;",
    ),
    Mutant(
        "only slots are given up, no memory",
        "admission.rs",
        "self.epoch_mut(group).has_no_room = reason != Wait::Step;",
        "",
    ),
    Mutant(
        "a group that could never hold it is room enough",
        "turns.rs",
        "group.ever_fits(request) && group.epoch",
        "group.epoch",
    ),
    Mutant(
        "who has had its turn is due at once",
        "live.rs",
        "ticket.since = request.turn_ended.unwrap_or(ticket.since);",
        "",
    ),
    Mutant(
        "a slot that was given up is anybody's",
        "queue.rs",
        "if let Some(called) = self.classes.get(&Class::Called) {",
        "if let Some(called) = self.classes.get(&Class::Called).filter(|_| self.urgent_had_its_turn) {",
    ),
    Mutant(
        "a prompt is long by its tokens alone",
        "group.rs",
        "Some(target) if prices.knows_prompts => {",
        "Some(target) if prices.knows_prompts && target == 0 => {",
    ),
    Mutant(
        "all that wait are left to the same group",
        "admission.rs",
        "outlook.leave(growth, to_compute, is_long, kinds);",
        "let _ = (growth, outlook);",
    ),
    Mutant(
        "what was left to a group counts again with every plan",
        "admission.rs",
        "Some(outlook) => outlook.forget_what_was_left(),",
        "Some(_) => {}",
    ),
    Mutant(
        "a group is looked at as it was before its last commit",
        "commit.rs",
        "        epoch.outlook = None;\n",
        "",
    ),
    Mutant(
        "a request without trust finds what it had",
        "withdrawal.rs",
        "        if trust == Trust::None {\n            self.requests",
        "        if trust == Trust::None && request.0 == 0 {\n            self.requests",
    ),
    Mutant(
        "what one without trust has left below the device is found",
        "withdrawal.rs",
        "tiers.forget_chain(request, kinds.count());",
        "let _ = (tiers, kinds);",
    ),
    Mutant(
        "where one without trust found the start of a block that block is found",
        "blocks/hold.rs",
        "for before in found.into_iter().filter(|&found| found < full).chain([full]) {",
        "for before in found.into_iter().filter(|&found| found > full).chain([full]) {",
    ),
    Mutant(
        "a file that is found no more stays on disk",
        "tiers/disk.rs",
        """            if !self.under_way.contains_key(&DiskPlace(at)) {
                self.orders.push(DiskOrder::Erase { place: DiskPlace(at) });
            }
        }
        self.shelf.forget_key(key);""",
        """        }
        self.shelf.forget_key(key);""",
    ),
    Mutant(
        "a request without trust leaves its last block to others",
        "withdrawal.rs",
        "Trust::None => epoch.part(slot, key, requests),",
        "Trust::None => epoch.leave(slot, requests),",
    ),
    Mutant(
        "who is withdrawn goes on waiting",
        "live.rs",
        "        request.account.begin_to_wait(&looks);\n        request.account.hold(&looks);\n        self.held += 1;",
        "        request.account.begin_to_wait(&looks);\n        request.account.hold(&looks);",
    ),
    Mutant(
        "a vector of all tokens is cut into rows",
        "admission.rs",
        "if request.goal == Goal::VectorOfAll && count < known {",
        "if request.goal == Goal::VectorOfAll && count < known && known == 0 {",
    ),
    Mutant(
        "a vector is made of a part of its tokens",
        "next_step.rs",
        "let (samples, pools) = (is_last && draws, is_last && !draws);",
        "let (samples, pools) = (is_last && draws, !draws);",
    ),
    Mutant(
        "vectors are not counted",
        "commit.rs",
        "if got == expected { Ok(()) } else { Err(CommitError::WrongVectorCount { expected, got }) }",
        "if got == expected || got > expected { Ok(()) } else { Err(CommitError::WrongVectorCount { expected, got }) }",
    ),
    Mutant(
        "a group that hangs is waited for",
        "admission.rs",
        "let is_out = id != here && (epoch.is_stalled(prices, now)",
        "let is_out = id != here && (epoch.is_stalled(prices, crate::Micros(0))",
    ),
    Mutant(
        "a request is given back to who left it",
        "admission.rs",
        "|| request.left_by.contains(&id));",
        "|| request.left_by.contains(&here));",
    ),
    Mutant(
        "what is being drawn is a load",
        "epoch.rs",
        "u64::from(requests.get(key).known().saturating_sub(running.committed.max(found)))",
        "u64::from((requests.get(key).known() + running.draws).saturating_sub(running.committed.max(found)))",
    ),
    Mutant(
        "long prompts behind another one use up the looks",
        "admission.rs",
        "true => self.requests.set_aside(ticket),",
        "true => self.requests.put_back(ticket),",
    ),
    Mutant(
        "who stands aside is forgotten",
        "admission.rs",
        "() if may_begin => BROUGHT_BACK_MAX,",
        "() if may_begin => 0,",
    ),
    Mutant(
        "who stands aside has no share",
        "live.rs",
        "self.aside.reorder(party, &self.shares);",
        "let _ = party;",
    ),
    Mutant(
        "a request that runs earns credit",
        "shares.rs",
        "account.served = account.served.max(self.level);",
        "account.served = account.served.max(if account.requests > 1 { 0 } else { self.level });",
    ),
    Mutant(
        "who is first in line has no turn",
        "queue.rs",
        "filter(|_| self.due_turns == 0)",
        "filter(|_| self.due_turns == u32::MAX)",
    ),
    Mutant(
        "a backlog holds up more important requests",
        "queue.rs",
        "self.important_turns < TURNS_OF_IMPORTANT;",
        "self.important_turns > TURNS_OF_IMPORTANT;",
    ),
    Mutant(
        "more important requests have every turn",
        "queue.rs",
        "(self.important_turns + 1).min(TURNS_OF_IMPORTANT);",
        "0;",
    ),
    Mutant(
        "who has a deadline is never due",
        "queue.rs",
        "filter(|(at, _)| *at <= due.0)",
        "filter(|_| true)",
    ),
    Mutant(
        "a long prompt starves where the target cannot be reached",
        "schedule.rs",
        "        next.begin_long();\n",
        "",
    ),
    Mutant(
        "who comes back goes to the front of the line",
        "queue.rs",
        "number: *number, ..ticket",
        "number: 0, ..ticket",
    ),
    Mutant(
        "who has waited for long is preempted again and again",
        "queue.rs",
        "Class::Urgent | Class::Due => Place { priority: i32::MIN, ..self.place },",
        "Class::Urgent | Class::Due => self.place,",
    ),
    Mutant(
        "who was alone pays for it",
        "shares.rs",
        "self.level = self.level.max(account.served);",
        "self.level = self.level.max(0);",
    ),
    Mutant(
        "those in a hurry have every turn",
        "queue.rs",
        "Class::Urgent => self.urgent_had_its_turn = true,",
        "Class::Urgent => self.urgent_had_its_turn = false,",
    ),
    Mutant(
        "those in a hurry go by arrival",
        "queue.rs",
        'Rank::Hurried(self.deadline.expect("what is urgent has a deadline"), self.place)',
        "Rank::Hurried(Micros(0), self.place)",
    ),
    Mutant(
        "new users go before those that have waited for long",
        "queue.rs",
        "Self::Due => (party.of_tenant(), shares.served(party).of_tenant()),",
        "Self::Due => (party, shares.served(party)),",
    ),
    Mutant(
        "a draft counts that was not drawn",
        "drafts.rs",
        "take_while(|(draft, drawn)| **draft == *drawn).count()",
        "filter(|(draft, drawn)| **draft == *drawn).count()",
    ),
    Mutant(
        "the KV of drafts that were not drawn counts",
        "commit.rs",
        "let mut end = row.end - row.drafts - u32::from(is_unsampled);",
        "let mut end = row.end - u32::from(is_unsampled);",
    ),
    Mutant(
        "the step behind drafts goes on where they end",
        "epoch.rs",
        "(self.planned, self.drafts) = (end, 0);",
        "(self.planned, self.drafts) = (self.planned.max(end), 0);",
    ),
    Mutant(
        "a step is planned ahead of one with drafts",
        "epoch.rs",
        "if self.loading > 0 || self.drafts > 0 {",
        "if self.loading > 0 {",
    ),
    Mutant(
        "drafts go beyond the end of a request",
        "drafting.rs",
        "self.drafts_max.min(request.known_max - request.known() - 1)",
        "self.drafts_max",
    ),
    Mutant(
        "a step draws more than it has slots",
        "drafting.rs",
        "let draws = self.config.limits.slots - running - enter;",
        "let draws = self.config.limits.slots - enter.min(0);",
    ),
    Mutant(
        "drafts take the last blocks",
        "drafting.rs",
        "wanted + (others * kinds.tables()) as usize",
        "wanted",
    ),
    Mutant(
        "a row whose mask has missed counts as drawn",
        "commit.rs",
        "let mut end = row.end - row.drafts - u32::from(is_unsampled);",
        "let mut end = row.end - row.drafts;",
    ),
    Mutant(
        "what was planned behind a row that was not drawn counts",
        "epoch.rs",
        "for_each(|later| later.is_void = true);",
        "for_each(|later| later.is_void = false);",
    ),
    Mutant(
        "one block too few",
        "blocks/mod.rs",
        "tokens.div_ceil(self.block_size) as usize",
        "(tokens / self.block_size) as usize",
    ),
    Mutant(
        "the source of a copy is never given back", "commit.rs", "epoch.blocks.give_source(source);", "let _ = source;"
    ),
    Mutant(
        "a copy does not hold its source",
        "admission.rs",
        "for block in hit.table.blocks().chain(sources) {",
        "for block in hit.table.blocks().chain(sources.take(0)) {",
    ),
    Mutant(
        "the latest is served first",
        "queue.rs",
        "Class::Priority(_) => Rank::Fair(Micros(0), self.place),",
        "Class::Priority(_) => Rank::Fair(Micros(u64::MAX - self.place.arrival.0), self.place),",
    ),
    Mutant(
        "a slot is free while a step in flight names it",
        "epoch.rs",
        "if self.running(slot).last_step > self.last_committed {",
        "if self.running(slot).last_step > self.last_sent {",
    ),
    Mutant(
        "a replay forgets the last token",
        "live.rs",
        "tokens.extend_from_slice(&new.generated);",
        "tokens.extend_from_slice(&new.generated[..new.generated.len().saturating_sub(1)]);",
    ),
    Mutant(
        "a taken block stays findable",
        "blocks/hold.rs",
        "&& let Some(lost) = index.forget(block)",
        "&& let Some(lost) = Some(index).filter(|_| false).and_then(|index| index.forget(block))",
    ),
    Mutant(
        "blocks are indexed when planned",
        "epoch.rs",
        "&running.table, &mut running.indexed, running.committed, running.hidden);",
        "&running.table, &mut running.indexed, running.planned, running.hidden);",
    ),
    Mutant(
        "salts are ignored",
        "keys.rs",
        "hasher.write(&salt.to_le_bytes());",
        "hasher.write(&(salt & 0).to_le_bytes());",
    ),
    Mutant(
        "how far an image reaches is no part of the key",
        "keys.rs",
        "hasher.write(&span.tokens.to_le_bytes());",
        "",
    ),
    Mutant(
        "the end of a prompt is found by tokens that stand for an image",
        "blocks/fill.rs",
        "[..request.keys.plain(start, committed as usize)]",
        "[..committed as usize - start]",
    ),
    Mutant(
        "all of a prompt may be a hit",
        "live.rs",
        "if is_scored { self.tokens.len() - 1 } else { self.scored as usize }",
        "if is_scored { self.tokens.len() } else { self.scored as usize }",
    ),
    Mutant(
        "a prompt that is to be scored is taken from the cache",
        "live.rs",
        "if is_scored { self.tokens.len() - 1 } else { self.scored as usize }",
        "self.tokens.len() - usize::from(is_scored || self.scored <= self.prompt_len)",
    ),
    Mutant(
        "what was scored before a preemption is told again",
        "commit.rs",
        "request.scored += row.scores;",
        "request.scored = row.scores;",
    ),
    Mutant(
        "a row scores what was told before",
        "live.rs",
        "saturating_sub(start.max(self.scored))",
        "saturating_sub(start)",
    ),
    Mutant(
        "more is scored than a step holds",
        "live.rs",
        "if excess == 0 { most } else",
        "if excess <= 1 { most } else",
    ),
    Mutant(
        "a row has more embeddings than a step holds",
        "live.rs",
        "self.embeds_in(start, start + most) > embeds {",
        "self.embeds_in(start, start + most) > embeds + 1 {",
    ),
    Mutant(
        "penalties count tokens that hold the places of embeddings",
        "next_step.rs",
        "request.tokens[request.embedded as usize..].to_vec()",
        "request.tokens.clone()",
    ),
    Mutant(
        "a gap between embeddings is none",
        "scope.rs",
        "&& span.start == end;",
        "&& span.start >= end;",
    ),
    Mutant(
        "prompts are never cut to the target",
        "next_step.rs",
        "let limit = spent + if self.keeps_half { left / 2 } else { left };",
        "let limit = spent + left * 100;",
    ),
    Mutant(
        "a tenant is never charged",
        "live.rs",
        "self.shares.charge(party, signed(tokens) - signed(was));",
        "self.shares.charge(party, 0);",
    ),
    Mutant("nobody becomes due", "queue.rs", "&& due <= now", "&& due.0 == u64::MAX && due <= now"),
    Mutant("memory is promised twice", "outlook.rs", "kinds) <= capacity", "kinds) <= capacity * 2"),
    Mutant(
        "a prompt that is being computed is computed again",
        "admission.rs",
        "} else if epoch.is_computing(request, &hit) {",
        "} else if false {",
    ),
    Mutant(
        "a stop token is not the end",
        "live.rs",
        "if self.stop.stop_ids.contains(&token) {",
        "if self.stop.stop_ids.first() == Some(&token) {",
    ),
    Mutant(
        "a window passes a token too early",
        "kinds.rs",
        "((tokens + 1).saturating_sub(window) / self.block_size) as usize",
        "((tokens + 2).saturating_sub(window) / self.block_size) as usize",
    ),
    Mutant("what a window has passed is kept", "commit.rs", "epoch.pass(row.slot, before);", "let _ = before;"),
    Mutant("the kinds share their keys", "keys.rs", "Self(self.0 ^ kind as u128)", "Self(self.0 ^ (kind & 0) as u128)"),
    Mutant(
        "a state begins with what its block contains",
        "state.rs",
        "moves.push(StateMove { slot, kind: number, from, to, until });",
        "moves.push(StateMove { slot, kind: number, from: from.or(Some(to)), to, until });",
    ),
    Mutant(
        "a state that no row ended with is found",
        "kinds.rs",
        "|| (at + 1) * self.block_size as usize == committed as usize",
        "|| (at + 1) * self.block_size as usize <= committed as usize",
    ),
    Mutant(
        "a pinned block is given up like any other",
        "blocks/hold.rs",
        "() if self.is_pinned(block) => Contents::Pinned,",
        "() if self.is_pinned(block) => Contents::Findable,",
    ),
    Mutant("a pin never ends", "pins.rs", "&& until <= now", "&& until.0 == u64::MAX && until <= now"),
    Mutant(
        "no tenant is over its quota",
        "quota.rs",
        "(line.len > self.blocks_max).then_some(line.oldest)",
        "(line.len > u32::MAX - self.blocks_max).then_some(line.oldest)",
    ),
    Mutant(
        "a hit is as long as the first kind can serve",
        "hit.rs",
        "for kind in kinds.bounded() {",
        "for kind in kinds.bounded().take(0) {",
    ),
    Mutant(
        "what is being saved is found",
        "tiers/shelf.rs",
        "(self.entry(at).state == State::Here).then_some(at)",
        "Some(at)",
    ),
    Mutant(
        "what a lost worker was saving is found",
        "tiers/mod.rs",
        "sent.saves.iter().for_each(|to| self.host.fail(to.0));",
        "sent.saves.iter().for_each(|to| drop(self.host.arrive(to.0)));",
    ),
    Mutant(
        "a block is saved that holds something else by now",
        "blocks/fill.rs",
        "(index.key_of(block) == Some(key)).then(|| index.tokens_of(block))",
        "index.key_of(block).filter(|_| key == key).map(|_| index.tokens_of(block))",
    ),
    Mutant(
        "a request computes before it has loaded",
        "admission.rs",
        "let waits_for_loads = !next.takes_loads(&hit);",
        "let waits_for_loads = hit.loads.len() > 9_999;",
    ),
    Mutant(
        "a root is given up before its leaf",
        "tiers/shelf.rs",
        "if entry.state == State::Here && entry.holders == 0 && !self.children.contains_key(&entry.label.key) {",
        "if entry.state == State::Here && entry.holders == 0 {",
    ),
    Mutant(
        "keys on disk are believed",
        "tiers/disk.rs",
        "&& key.bytes() == entry.key;",
        "&& key.bytes() != BlockKey([0; 16]);",
    ),
    Mutant(
        "a disk that hangs is waited for",
        "tiers/disk.rs",
        "self.first_wait().filter(|&until| until <= now)?;",
        "self.first_wait().filter(|&until| until <= now && until.0 == u64::MAX)?;",
    ),
    Mutant(
        "what is void is found when it comes",
        "tiers/shelf.rs",
        "let is_wanted = entry.state == State::Coming;",
        "let is_wanted = entry.state != State::Here;",
    ),
]


def text_without(root: Path, mutant: Mutant) -> str:
    """The file without the bug, in which there must be one place for it."""
    text = (root / "router/core/src" / mutant.file).read_text()
    if text.count(mutant.is_) != 1:
        sys.exit(f"{mutant.name}: {mutant.file} has {text.count(mutant.is_)} times: {mutant.is_}")
    return text


def planted(copy: Path, mutant: Mutant) -> str:
    """Plants the bug and returns the file as it was."""
    text = text_without(copy, mutant)
    (copy / "router/core/src" / mutant.file).write_text(text.replace(mutant.is_, mutant.was))
    return text


def tests_fail(copy: Path, file: str) -> bool:
    """Those of the file first, if they have its name, then the quick ones: most bugs are caught before the others are even built.
    Tests that do not end fail."""
    all_tests = (
        "--lib",
        "steps",
        "preemption",
        "drafts",
        "kinds",
        "masks",
        "withdrawal",
        "turns",
        "scores",
        "embeds",
        "cache",
        "tiers",
        "loads",
        "worlds",
    )
    for tests in sorted(all_tests, key=lambda tests: tests not in file):
        chosen = [tests] if tests == "--lib" else ["--test", tests]
        command = ["cargo", "test", "--release", "--offline", "-p", "pelton-core", *chosen]
        built = subprocess.run([*command, "--no-run"], cwd=copy, capture_output=True, text=True, check=False)
        if built.returncode != 0:
            sys.exit(f"the mutant does not compile:\n{built.stderr}")
        # `timeout` ends what cargo has started, too.
        run = ["timeout", str(TEST_TIMEOUT_S), *command]
        if subprocess.run(run, cwd=copy, capture_output=True, check=False).returncode != 0:
            return True
    return False


def main() -> None:
    names = sys.argv[1:]
    if names == ["--check"]:
        for mutant in MUTANTS:
            text_without(ROOT, mutant)
        return
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        shutil.copytree(ROOT / "router/core", copy / "router/core")
        shutil.copytree(ROOT / "bench/core", copy / "bench/core")
        manifest = re.sub(r"default-members = .*", "", (ROOT / "Cargo.toml").read_text())
        (copy / "Cargo.toml").write_text(
            re.sub(r"members = \[.*?\]", 'members = ["router/core"]', manifest, flags=re.DOTALL)
        )
        shutil.copy(ROOT / "Cargo.lock", copy)
        if tests_fail(copy, ""):
            sys.exit("the tests fail without any planted bug")
        survivors = []
        for at, mutant in enumerate(chosen, start=1):
            began = time.monotonic()
            before = planted(copy, mutant)
            caught = tests_fail(copy, mutant.file)
            (copy / "router/core/src" / mutant.file).write_text(before)
            verdict = "caught" if caught else "SURVIVED"
            print(f"[{at}/{len(chosen)}] {mutant.name}: {verdict} ({time.monotonic() - began:.0f} s)", flush=True)
            if not caught:
                survivors.append(mutant.name)
    if survivors:
        sys.exit(f"{len(survivors)} of {len(chosen)} planted bugs were not caught: {', '.join(survivors)}")
    print(f"all {len(chosen)} planted bugs were caught")


if __name__ == "__main__":
    main()
