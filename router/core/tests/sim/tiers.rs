//! What a world does to the tiers below the devices, and the life before it that has left blocks on its disk.

use pelton_core::{CoreConfig, GroupId, RequestId, TokenId};

use super::disk::{Disk, Done};
use super::random::Random;
use super::worker::{HostMemory, Worker};
use super::{Micros, World, requests};

impl World {
    /// The disk takes orders, does something, or is heard.
    pub(super) fn disk_acts(&mut self) {
        match self.random.within(0..=2) {
            0 => self.order(),
            1 => drop(self.disk_works()),
            _ => drop(self.hear_disk()),
        }
    }

    /// The disk does all there is to do.
    pub(super) fn calm_disk(&mut self) {
        loop {
            self.order();
            let has_worked = self.disk_works();
            if !(self.hear_disk() || has_worked || self.core.has_disk_orders()) {
                break;
            }
        }
    }

    fn order(&mut self) {
        let orders = self.core.disk_orders();
        assert!(self.config.disk_places > 0 || orders.is_empty());
        self.disk.take(orders, &mut self.host);
    }

    fn disk_works(&mut self) -> bool {
        let done = self.disk.work(&mut self.random, self.faults.disk, &mut self.host);
        match done {
            Some(Done::Written) => self.seen.disk_writes += 1,
            Some(Done::Read) => self.seen.disk_reads += 1,
            Some(Done::Fault) => self.seen.disk_faults += 1,
            Some(Done::Erased) => self.seen.disk_erasures += 1,
            None => {}
        }
        done.is_some()
    }

    fn hear_disk(&mut self) -> bool {
        let answer = self.disk.answer(&mut self.random);
        if let Some((place, result)) = answer {
            self.core.disk_done(place, result);
        }
        answer.is_some()
    }

    /// The host's memory is another one, but for what steps in flight are about to read.
    pub(super) fn clear_tiers(&mut self) {
        self.seen.clears += 1;
        self.core.clear_tiers();
        let workers = self.sites.values().filter_map(|site| site.worker.as_ref());
        let read: Vec<usize> = workers.flat_map(Worker::sources).collect();
        for (block, kv) in self.host.iter_mut().enumerate() {
            if !read.contains(&block) {
                kv.fill(None);
            }
        }
    }
}

/// A disk as an earlier life has left it, in which some of the same texts were asked for.
pub(super) fn earlier_life(random: &mut Random, config: &CoreConfig, texts: &[Vec<TokenId>]) -> Disk {
    let (mut disk, mut host) = (Disk::default(), host_memory(config));
    if config.disk_places == 0 || random.once_in(2) {
        return disk;
    }
    let group = GroupId(0);
    let blocks = config.max_model_len.div_ceil(config.block_size) * 2 * config.kinds.len() as u32;
    let mut core = pelton_core::Core::new(config.clone());
    core.add_group(group, blocks, true);
    let mut worker = Worker::new(blocks, config, random.within(1..=60), false);
    for id in 0..3 {
        let new = requests::request(random, RequestId(id), Micros(0), texts, None, config);
        let (scope, goal) = (new.scope.clone(), new.goal);
        core.submit(new).expect("room");
        loop {
            let plan = core.plan(group, Micros(0));
            let is_idle = plan.is_none();
            plan.into_iter().for_each(|plan| worker.receive(plan, |_| (scope.clone(), goal)));
            disk.take(core.disk_orders(), &mut host);
            while disk.work(random, false, &mut host).is_some() {}
            while let Some((place, result)) = disk.answer(random) {
                core.disk_done(place, result);
            }
            worker.work(random, &mut host);
            match worker.results.pop_front() {
                Some(results) => core.commit(group, results).expect("a worker that lives answers rightly"),
                None if is_idle && !core.has_disk_orders() => break,
                None => {}
            }
        }
    }
    disk
}

/// As it is at first.
pub(super) fn host_memory(config: &CoreConfig) -> HostMemory {
    vec![vec![None; config.block_size as usize]; config.host_blocks as usize]
}
