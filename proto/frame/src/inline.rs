//! Frames as bytes, for peers that share no memory: each side keeps a memory of its own, and these bytes keep the two alike.
//!
//! What travels is the header and the used words of each region, one after the other: exactly what the checksum is over,
//! so a decode step of 256 rows takes about 10 KB whatever the capacities are. Here only lengths are checked, to know
//! where words go; `WorkerEnd::take` and `RouterEnd::poll` check what the words say, as they do with shared memory.

use std::time::Duration;

use crate::{FrameError, FrameHeader, Memory, Region, ResultHeader, plan::PLAN_REGIONS, router::result_regions};

/// Carries plan parts and result parts between a memory and a stream. One per memory, beside its `RouterEnd` or `WorkerEnd`.
pub struct Inline {
    memory: Memory,
    plans: u32,   // taken out, or brought in
    results: u32, // taken out, or brought in
}

impl Inline {
    /// For a fresh memory.
    pub fn new(memory: Memory) -> Self {
        Self { memory, plans: 0, results: 0 }
    }

    /// Router: the next plan part that was submitted, waiting at most `timeout` for it. For a thread of its own.
    pub fn next_plan(&mut self, timeout: Duration) -> Result<Option<Vec<u8>>, FrameError> {
        self.memory.submissions().wait(self.plans, timeout);
        if self.memory.submitted() == self.plans || self.memory.is_detached() {
            return Ok(None); // looked at in this order: `detach` counts as a submission
        }
        let bytes = self.plan_bytes(self.plans % self.memory.layout().capacities().frames)?;
        self.plans = self.plans.wrapping_add(1);
        Ok(Some(bytes))
    }

    /// Worker: puts a plan part into the next frame and publishes it to this process's `WorkerEnd`.
    pub fn accept_plan(&mut self, bytes: &[u8]) -> Result<u32, FrameError> {
        let words = words("plan", bytes, FrameHeader::WORDS)?;
        let (head, body) = words.split_at(FrameHeader::WORDS);
        let header: FrameHeader = *bytemuck::from_bytes(bytemuck::cast_slice(head));
        let regions = self.plan_regions(&header)?;
        let frames = self.memory.layout().capacities().frames;
        let most = frames - self.plans.wrapping_sub(self.memory.completed()).min(frames);
        if most == 0 {
            return Err(FrameError::NoFreeFrame { frames });
        }
        let frame = self.plans % frames;
        self.put("plan", frame, (Region::Header, head), &regions, body)?;
        self.plans = self.plans.wrapping_add(1);
        self.memory.submissions().raise();
        Ok(frame)
    }

    /// Worker: the next result part that was published, if there is one.
    pub fn next_result(&mut self) -> Result<Option<Vec<u8>>, FrameError> {
        if self.memory.completed() == self.results {
            return Ok(None);
        }
        let bytes = self.result_bytes(self.results % self.memory.layout().capacities().frames)?;
        self.results = self.results.wrapping_add(1);
        Ok(Some(bytes))
    }

    /// Router: puts a result part into the next frame and publishes it to the `RouterEnd`. The caller rings the bell.
    pub fn accept_result(&mut self, bytes: &[u8]) -> Result<(), FrameError> {
        let words = words("result", bytes, ResultHeader::WORDS)?;
        let (head, body) = words.split_at(ResultHeader::WORDS);
        let header: ResultHeader = *bytemuck::from_bytes(bytemuck::cast_slice(head));
        let regions = self.result_regions(&header)?;
        let frame = self.results % self.memory.layout().capacities().frames;
        self.put("result", frame, (Region::ResultHeader, head), &regions, body)?;
        self.results = self.results.wrapping_add(1);
        self.memory.beat();
        self.memory.complete();
        Ok(())
    }

    /// The plan part of a frame.
    pub fn plan_bytes(&self, frame: u32) -> Result<Vec<u8>, FrameError> {
        let mut words = Vec::new();
        self.memory.read(frame, Region::Header, FrameHeader::WORDS, &mut words);
        let header: FrameHeader = *bytemuck::from_bytes(bytemuck::cast_slice(&words));
        for (region, count) in self.plan_regions(&header)? {
            self.memory.read(frame, region, count, &mut words);
        }
        Ok(bytemuck::cast_slice(&words).to_vec())
    }

    /// The result part of a frame.
    pub fn result_bytes(&self, frame: u32) -> Result<Vec<u8>, FrameError> {
        let mut words = Vec::new();
        self.memory.read(frame, Region::ResultHeader, ResultHeader::WORDS, &mut words);
        let header: ResultHeader = *bytemuck::from_bytes(bytemuck::cast_slice(&words));
        for (region, count) in self.result_regions(&header)? {
            self.memory.read(frame, region, count, &mut words);
        }
        Ok(bytemuck::cast_slice(&words).to_vec())
    }

    /// Used words of each region of a plan, none above its capacity.
    fn plan_regions(&self, header: &FrameHeader) -> Result<Vec<(Region, usize)>, FrameError> {
        let step = header.step();
        let count = |(region, count): (Region, u32)| {
            let place = self.memory.layout().place(region);
            if count > place.capacity {
                return Err(FrameError::TooMany { step, region, got: count.into(), capacity: place.capacity });
            }
            Ok((region, count as usize * place.words))
        };
        PLAN_REGIONS.into_iter().zip(header.counts()).map(count).collect()
    }

    /// Used words of each region of a result, none above its capacity.
    fn result_regions(&self, header: &ResultHeader) -> Result<Vec<(Region, usize)>, FrameError> {
        let [tops, vectors] = [Region::TopIds, Region::Pooled].map(|region| self.memory.layout().place(region));
        if header.draws > tops.capacity {
            let step = crate::checksum::whole(header.step_lo, header.step_hi);
            let (region, got, capacity) = (Region::Sampled, header.draws.into(), tops.capacity);
            return Err(FrameError::TooMany { step, region, got, capacity });
        }
        let draws = header.draws as usize;
        let top = if header.top == 0 { 0 } else { draws * tops.words };
        let pooled = if header.pooled == 0 { 0 } else { draws * vectors.words };
        Ok(result_regions(draws, top, pooled).into())
    }

    fn put(
        &self,
        part: &'static str,
        frame: u32,
        (header, head): (Region, &[u32]),
        regions: &[(Region, usize)],
        mut body: &[u32],
    ) -> Result<(), FrameError> {
        let expected = 4 * (head.len() + regions.iter().map(|(_, count)| count).sum::<usize>());
        let got = 4 * (head.len() + body.len());
        if got != expected {
            return Err(FrameError::Length { part, got, expected });
        }
        for (region, count) in regions {
            let (words, rest) = body.split_at(*count);
            self.memory.write(frame, *region, words);
            body = rest;
        }
        self.memory.write(frame, header, head);
        Ok(())
    }
}

/// The bytes as words, at least `least` of them. Copied: bytes from a stream are not aligned.
fn words(part: &'static str, bytes: &[u8], least: usize) -> Result<Vec<u32>, FrameError> {
    if !bytes.len().is_multiple_of(4) || bytes.len() < 4 * least {
        return Err(FrameError::Length {
            part,
            got: bytes.len(),
            expected: bytes.len().next_multiple_of(4).max(4 * least),
        });
    }
    Ok(bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect())
}
