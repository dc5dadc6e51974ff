//! What the schedule is worth, in virtual time: see `load/mod.rs`.

mod load;

use load::{Asked, Load, Random, config, percentile, text};
use pelton_core::{CoreConfig, GroupId, Limits, Party, Plan};

/// A machine that the core does not know: not linear, and dearer for late tokens of long texts.
fn machine(plan: &Plan) -> u64 {
    let tokens: u64 = plan.rows.iter().map(|row| u64::from(row.count)).sum();
    let read: u64 = plan.rows.iter().map(|row| u64::from(row.count) * u64::from(row.start + row.count / 2)).sum();
    let rows = plan.rows.len() as u64;
    1_500 + (tokens * 60).max(2_000) + rows * 12 + read / 900
}

fn chats(count: usize, mean_gap_us: f64) -> Vec<Asked> {
    let mut random = Random(7);
    let mut now = 0;
    (0..count)
        .map(|_| {
            now += random.gap(mean_gap_us);
            let (prompt, answer) = (random.within(200, 3_000), random.within(50, 300));
            Asked::new(now, text(&mut random, prompt), answer)
        })
        .collect()
}

#[test]
fn with_a_target_for_the_time_between_tokens_the_99th_percentile_keeps_it_and_throughput_stays() {
    const TARGET_US: u64 = 40_000;
    let run = |itl_target_us| {
        let mut load = Load::new(CoreConfig { itl_target_us, ..config() }, 1, 16_384, machine);
        load.run(chats(600, 90_000.0)); // more than the machine can do: it is never idle
        let gaps = load.gaps();
        println!("{itl_target_us:?}: p50 {} p99 {} end {}", percentile(&gaps, 50), percentile(&gaps, 99), load.end());
        (percentile(&gaps, 99), load.end())
    };
    let (free_p99, free_end) = run(None);
    let (p99, end) = run(Some(TARGET_US as u32));
    assert!(free_p99 > TARGET_US * 2, "without a target prompts hold up the others: {free_p99}");
    assert!(p99 * 10 <= TARGET_US * 11, "p99 {p99}");
    assert!(end * 100 <= free_end * 105, "all was done by {end}, without a target by {free_end}");
}

#[test]
fn the_target_is_kept_beside_prompts_that_are_scored() {
    const TARGET_US: u64 = 40_000;
    // A prompt's token that is scored costs as much as seven others.
    let dear = |plan: &Plan| machine(plan) + plan.rows.iter().map(|row| u64::from(row.scores) * 400).sum::<u64>();
    let limits = Limits { scores: 128, ..config().limits };
    let mut load = Load::new(CoreConfig { itl_target_us: Some(TARGET_US as u32), limits, ..config() }, 1, 16_384, dear);
    let mut asked = chats(300, 180_000.0);
    asked.iter_mut().step_by(4).for_each(|asked| asked.is_scored = true);
    load.run(asked);
    let p99 = percentile(&load.gaps(), 99);
    assert!(p99 * 10 <= TARGET_US * 11, "p99 {p99}");
}

/// 48 system prompts of 4,000 tokens that users share; a group's cache holds a dozen.
fn shared_prefixes(count: usize) -> Vec<Asked> {
    let mut random = Random(11);
    let prefixes: Vec<_> = (0..48).map(|_| text(&mut random, 4_000)).collect();
    let mut now = 0;
    (0..count)
        .map(|_| {
            now += random.gap(16_000.0);
            let mut prompt = prefixes[random.within(0, 47) as usize].clone();
            prompt.extend(text(&mut random, 120));
            let answer = random.within(10, 40);
            Asked::new(now, prompt, answer)
        })
        .collect()
}

#[test]
fn eight_groups_find_nearly_every_shared_prefix_and_answer_many_times_sooner_than_in_turns() {
    // Goal R1. A group holds 2,000 blocks of 32 tokens: 12 prefixes and what runs.
    const BLOCKS: u32 = 2_000;
    let asked = shared_prefixes(3_000);
    let mut load = Load::new(config(), 8, BLOCKS, machine);
    load.run(asked.clone());
    let p90 = percentile(&load.first_tokens(|_| true), 90);

    // An oracle computes each prefix once in all.
    let oracle = (asked.len() - 48) as u64 * 4_000;
    let hits = load.counts().cached_tokens;

    let mut turns: Vec<u64> = Vec::new();
    for group in 0..8 {
        let mine: Vec<Asked> = asked.iter().skip(group).step_by(8).cloned().collect();
        let mut alone = Load::new(config(), 1, BLOCKS, machine);
        alone.run(mine);
        turns.extend(alone.first_tokens(|_| true));
    }
    turns.sort_unstable();
    let in_turns = percentile(&turns, 90);
    println!(
        "hits {:.3} of the oracle's; first token p90 {p90} us, in turns {in_turns} us",
        hits as f64 / oracle as f64
    );
    assert!(hits * 100 >= oracle * 95, "{hits} of {oracle}");
    assert!(in_turns >= p90 * 20, "{p90} against {in_turns}");
}

#[test]
fn short_prompts_pass_long_ones_and_a_long_one_gets_on_all_the_while() {
    let mut random = Random(3);
    let long = |random: &mut Random, at| Asked::new(at, text(random, 120_000), 4);
    let mut alone = Load::new(config(), 1, 16_384, machine);
    alone.run(vec![long(&mut random, 0)]);
    let time_alone = alone.end();

    let mut asked = vec![long(&mut random, 0), long(&mut random, 1)];
    for at in 0..300_u64 {
        asked.push(Asked::new(100_000 + at * 90_000, text(&mut random, 300), 8));
    }
    let mut load = Load::new(config(), 1, 16_384, machine);
    load.run(asked);
    let short = load.first_tokens(|asked| asked.prompt.len() == 300);
    // Three steps: the one that runs, the one behind it, and its own.
    let longest_step = 1_500 + 2_048 * 60 + 24 + 2_048 * 120_000 / 900;
    assert!(percentile(&short, 99) < 3 * longest_step, "{} us", percentile(&short, 99));
    let first = load.seen[0].first_token_after();
    assert!(first < time_alone * 5 / 2, "{first} us, alone {time_alone} us");
    assert!(load.seen[1].first_token_after() < time_alone * 5, "the second long one follows the first");
}

#[test]
fn many_long_prompts_before_it_hold_up_no_short_one() {
    let mut random = Random(3);
    let mut asked: Vec<_> = (0..200).map(|at| Asked::new(at, text(&mut random, 6_000), 4)).collect();
    for at in 0..100_u64 {
        asked.push(Asked::new(100_000 + at * 90_000, text(&mut random, 300), 8));
    }
    let mut load = Load::new(config(), 1, 16_384, machine);
    load.run(asked);
    let short = load.first_tokens(|asked| asked.prompt.len() == 300);
    let longest_step = 1_500 + 2_048 * 60 + 24 + 2_048 * 6_000 / 900;
    // The first one comes while the long ones are looked at for the first time.
    assert!(percentile(&short, 95) < 6 * longest_step, "{} us", percentile(&short, 95));
    assert!(percentile(&short, 100) < 10 * longest_step, "{} us", percentile(&short, 100));
    assert!(load.end() > 100_000 + 99 * 90_000, "there were long ones all the while");
}

#[test]
fn a_group_that_hangs_holds_up_only_those_that_it_has() {
    let mut random = Random(13);
    let asked: Vec<_> = (0..1_500).map(|at| Asked::new(at * 14_000, text(&mut random, 200), 12)).collect();
    let mut load = Load::new(config(), 2, 16_384, machine);
    let (from, until) = (3_000_000, 28_000_000);
    load.hangs = Some((GroupId(0), from, until));
    load.run(asked);
    let held_up = load.seen.iter().filter(|seen| seen.first_token_after() > 2_000_000).count();
    assert!(held_up <= 20, "{held_up} of 1,500 waited for a group that does nothing");
}

#[test]
fn memory_is_filled_and_hardly_anybody_is_preempted() {
    // Everybody may draw 8,192 tokens, and few do. 1,200 blocks: some twenty chats at their usual length.
    let mut load = Load::new(CoreConfig { max_running: 256, ..config() }, 1, 1_200, machine);
    load.run(chats(1_000, 30_000.0));
    let counts = load.counts();
    let room_per_token = load.end() as f64 / counts.generated_tokens as f64;
    println!(
        "{} preemptions, {} tokens lost; {room_per_token:.0} us a token",
        counts.preemptions, counts.preempted_tokens
    );
    assert!(counts.preemptions <= 20, "{} of 1,000", counts.preemptions);

    let mut roomy = Load::new(CoreConfig { max_running: 256, ..config() }, 1, 16_384, machine);
    roomy.run(chats(1_000, 30_000.0));
    assert!(load.end() * 4 <= roomy.end() * 5, "memory costs some time: {} against {}", load.end(), roomy.end());
}

#[test]
fn nobody_waits_for_ever_behind_more_important_requests() {
    // A flood of priority 0 that the machine cannot serve, and one modest request of priority 2: due after 90 s.
    let mut random = Random(5);
    let mut asked = chats(4_000, 50_000.0);
    asked[100].priority = 2;
    asked.iter_mut().for_each(|asked| asked.prompt.truncate(400));
    for asked in &mut asked {
        asked.answer = 200 + random.within(0, 100);
    }
    let mut load = Load::new(CoreConfig { max_running: 16, ..config() }, 1, 16_384, machine);
    load.run(asked);
    let waited = load.seen[100].first_token_after();
    assert!(waited > 20_000_000, "the flood is one: {waited} us");
    assert!(waited < 100_000_000, "90 s of patience, and then its turn: {waited} us");
    assert!(load.end() > 300_000_000, "long before the flood ends");
}

/// What `queue/bound.rs` shows of turns, in time: three tenants ask for far more than can be done, with more important requests, long
/// prompts, deadlines and ever new users, and a modest one asks now and then.
#[test]
fn whatever_comes_nobody_waits_for_much_longer_than_its_patience() {
    const PATIENCE: u64 = 30_000_000;
    for seed in 0..12 {
        let mut random = Random(seed);
        let mut asked = chats(1_500, 60_000.0);
        for (at, asked) in asked.iter_mut().enumerate() {
            asked.answer = 100 + random.within(0, 200);
            asked.prompt.truncate(400);
            if at % 40 == 7 {
                (asked.party, asked.priority) = (Party { tenant: 9, user: 1 }, random.within(0, 2) as i32);
                continue;
            }
            asked.party = Party { tenant: random.next() % 3, user: random.next() };
            asked.priority = -(random.within(0, 3) as i32);
            match random.within(0, 9) {
                0 => asked.deadline_after = Some(u64::from(random.within(150, 250)) * 1_000_000),
                1 => asked.prompt = text(&mut random, 5_000),
                _ => {}
            }
        }
        let mut load = Load::new(CoreConfig { max_running: 16, ..config() }, 1, 16_384, machine);
        load.run(asked.clone());
        let longest_run = load.seen.iter().map(|seen| seen.tokens[seen.tokens.len() - 1] - seen.tokens[0]).max();
        let longest_run = longest_run.expect("many asked");
        let modest = || asked.iter().zip(&load.seen).filter(|(asked, _)| asked.party.tenant == 9);
        for (asked, seen) in modest() {
            let (waited, patience) = (seen.first_token_after(), PATIENCE * (1 + asked.priority as u64));
            assert!(waited <= patience + longest_run, "seed {seed}, priority {}: {waited} us", asked.priority);
        }
        let waited = modest().filter(|(_, seen)| seen.first_token_after() > PATIENCE).count();
        assert!(waited > 5, "more important ones held it up: {waited}");
    }
}

#[test]
fn a_backlog_that_has_waited_for_long_holds_up_no_more_important_request() {
    let mut random = Random(21);
    let mut asked: Vec<Asked> =
        (0..2_600).map(|at| Asked::new(at, text(&mut random, 300), 150 + random.within(0, 100))).collect();
    for at in 0..35_u64 {
        asked.push(Asked { priority: -10, ..Asked::new(2_000_000 + at * 4_000_000, text(&mut random, 300), 20) });
    }
    let mut load = Load::new(CoreConfig { max_running: 16, ..config() }, 1, 16_384, machine);
    load.run(asked);
    let longest = percentile(&load.first_tokens(|asked| asked.priority < 0), 100);
    assert!(load.end() > 140_000_000, "there was a backlog all the while: {}", load.end());
    assert!(longest < 3_000_000, "{longest} us");
}

#[test]
fn a_tenant_that_sets_deadlines_gets_no_more_than_half() {
    let mut random = Random(22);
    let asked: Vec<Asked> = (0..1_500)
        .map(|at| Asked {
            party: Party { tenant: at % 2, user: 0 },
            deadline_after: (at % 2 == 1).then_some(110_000_000),
            ..Asked::new(at, text(&mut random, 300), 150 + random.within(0, 100))
        })
        .collect();
    let mut load = Load::new(CoreConfig { max_running: 16, ..config() }, 1, 16_384, machine);
    load.run(asked.clone());
    // From 55 s on all of tenant 1 is in a hurry.
    let served = |tenant| {
        let of = asked.iter().zip(&load.seen).filter(|(asked, _)| asked.party.tenant == tenant);
        of.filter(|(_, seen)| (60_000_000..80_000_000).contains(&seen.tokens[0])).count()
    };
    let (calm, hurried) = (served(0), served(1));
    assert!(calm + hurried > 200 && hurried * 10 <= calm * 12, "{calm} and {hurried}");
}

#[test]
fn a_long_prompt_gets_on_where_the_target_cannot_be_reached() {
    let mut random = Random(23);
    let mut asked = vec![Asked::new(0, text(&mut random, 300), 4_000)];
    asked.push(Asked::new(1_000_000, text(&mut random, 6_000), 4));
    // More than a step takes of them, and each shorter than what a step has time for, so that they go before it.
    asked.extend((0..2_000).map(|at| Asked::new(1_000_000 + at * 3_000, text(&mut random, 12), 2)));
    asked.sort_by_key(|asked| asked.arrival);
    let mut load = Load::new(CoreConfig { itl_target_us: Some(3_000), ..config() }, 1, 16_384, machine);
    load.run(asked);
    let long = percentile(&load.first_tokens(|asked| asked.prompt.len() == 6_000), 100);
    assert!(long < 4_000_000, "{long} us: the others come for 6 s");
}

#[test]
fn prompts_that_a_step_has_the_tokens_for_and_not_the_time_let_short_ones_pass() {
    let mut random = Random(29);
    let mut asked: Vec<_> = (0..12).map(|at| Asked::new(at * 300_000, text(&mut random, 300), 1_500)).collect();
    asked.extend((0..20).map(|_| Asked::new(6_000_000, text(&mut random, 2_000), 2)));
    asked.push(Asked::new(6_001_000, text(&mut random, 3), 2));
    let mut load = Load::new(CoreConfig { itl_target_us: Some(20_000), ..config() }, 1, 16_384, machine);
    load.run(asked);
    let short = percentile(&load.first_tokens(|asked| asked.prompt.len() == 3), 100);
    let others = percentile(&load.first_tokens(|asked| asked.prompt.len() == 2_000), 50);
    println!("short {short} us, others {others} us");
    assert!(short * 20 < others, "{short} us, and half of those before it have their first token after {others}");
}

#[test]
fn a_tenant_that_floods_the_queue_does_not_slow_down_one_that_asks_now_and_then() {
    let mut asked = chats(1_500, 20_000.0);
    for (at, asked) in asked.iter_mut().enumerate() {
        asked.party =
            if at % 50 == 49 { Party { tenant: 2, user: 0 } } else { Party { tenant: 1, user: at as u64 % 3 } };
    }
    let mut load = Load::new(CoreConfig { max_running: 16, ..config() }, 1, 16_384, machine);
    load.run(asked);
    let modest = load.first_tokens(|asked| asked.party.tenant == 2);
    let flood = load.first_tokens(|asked| asked.party.tenant == 1);
    let (modest, flood) = (percentile(&modest, 90), percentile(&flood, 90));
    println!("modest {modest} us, flood {flood} us");
    assert!(modest * 20 < flood);
}

#[test]
fn answers_to_the_same_prompt_compute_it_once() {
    // `n` = 8 arrives as eight requests at the same time.
    let mut random = Random(9);
    let prompt = text(&mut random, 3_000);
    let mut load = Load::new(config(), 1, 16_384, machine);
    load.run((0..8).map(|_| Asked::new(0, prompt.clone(), 20)).collect());
    let counts = load.counts();
    assert_eq!(
        counts.prompt_tokens - counts.cached_tokens,
        3_000 + 7,
        "each but the first computes its last token alone"
    );
}
