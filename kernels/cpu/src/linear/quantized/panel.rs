//! Panels of codes, written line by line past the caches.

use super::pack::Layout;
use super::scheme::Bits;
use crate::simd::{Kernel, LANES, Lanes, Line, Simd};

/// A panel that is being filled: each of its lines is a vector.
pub(super) struct Panel<'a> {
    pub(super) lines: &'a mut [Line],
    pub(super) layout: Layout,
    pub(super) bits: Bits,
    /// K.
    pub(super) depth: usize,
    /// Whether segments have scales of their own.
    pub(super) is_grouped: bool,
}

/// 16 words of up to 16 columns.
type Block = [Lanes<u32>; LANES];

impl Panel<'_> {
    /// How many scales, and zero points, a column has.
    pub(super) fn groups(&self) -> usize {
        if self.is_grouped { self.layout.segments } else { 1 }
    }

    /// How many codes are a word.
    pub(super) fn codes_of_word(&self) -> usize {
        match self.bits {
            Bits::Four => 8,
            Bits::Eight => 4,
        }
    }

    /// The scales and zero points of up to 16 columns, which are one of its vectors wide: `[columns, groups]`.
    pub(super) fn put_scales(&mut self, vector: usize, scales: impl Fn(usize, usize) -> f32, columns: usize) {
        let groups = self.groups();
        for segment in 0..self.layout.segments {
            let line = &mut self.lines[segment * self.layout.segment_vectors() + vector];
            for (column, to) in line.words()[..columns].iter_mut().enumerate() {
                *to = scales(column, segment.min(groups - 1)).to_bits();
            }
        }
    }

    /// The scales of 16 columns, of one segment. Others see them when the thread has drained.
    #[inline(always)]
    pub(super) fn put_scales_of_lanes<S: Simd>(&mut self, simd: S, segment: usize, vector: usize, scales: &Lanes<f32>) {
        simd.stream_line(bytemuck::cast_ref(scales), &mut self.lines[segment * self.layout.segment_vectors() + vector]);
    }

    /// Where the words of such a vector lie.
    pub(super) fn places(&self, vector: usize) -> Places {
        let Layout { words, header, width, .. } = self.layout;
        Places { line: header * width + vector, left: words, words, header, width }
    }

    fn put_zeros(&mut self, vector: usize, zeros: &[u8]) {
        let (groups, width) = (self.groups(), self.layout.width);
        for segment in 0..self.layout.segments {
            let line = &mut self.lines[segment * self.layout.segment_vectors() + width + vector];
            for (to, zeros) in line.words().iter_mut().zip(zeros.chunks_exact(groups)) {
                *to = u32::from(zeros[segment.min(groups - 1)]);
            }
        }
    }

    /// Words of as many columns, from that word along K on: `block` has a column in each row. Others see them when the thread has drained.
    #[inline(always)]
    fn put<S: Simd>(&mut self, simd: S, vector: usize, first: usize, mut block: Block) {
        simd.transpose(&mut block);
        let Layout { words, header, width, .. } = self.layout;
        let count = LANES.min(self.depth.div_ceil(self.codes_of_word()) - first);
        let mut word = first % words;
        let mut at = first / words * self.layout.segment_vectors() + (header + word) * width + vector;
        if word + LANES <= words && count == LANES && width == 4 {
            // Loops of a length that is known, so that all stays in registers.
            let to = &mut self.lines[at..][..(LANES - 1) * 4 + 1];
            for (word, line) in block.iter().enumerate() {
                simd.stream_line(bytemuck::cast_ref(line), &mut to[4 * word]);
            }
            return;
        }
        for line in &block[..count] {
            simd.stream_line(bytemuck::cast_ref(line), &mut self.lines[at]);
            (word, at) = (word + 1, at + width);
            if word == words {
                (word, at) = (0, at + header * width);
            }
        }
    }
}

/// The lines of one vector's words, from the first word along K on.
pub(super) struct Places {
    line: usize,
    /// Words of the segment from here on.
    left: usize,
    words: usize,
    header: usize,
    width: usize,
}

impl Places {
    /// Of the next word.
    #[inline(always)]
    pub(super) fn next(&mut self) -> usize {
        let line = self.line;
        (self.line, self.left) = (line + self.width, self.left - 1);
        if self.left == 0 {
            (self.line, self.left) = (self.line + self.header * self.width, self.words);
        }
        line
    }
}

/// Codes of 4 bits, eight to a word: byte j has k+j below and k+4+j above.
#[inline(always)]
fn join(codes: [u8; 8]) -> u32 {
    let codes = u64::from_le_bytes(codes);
    (codes | codes >> 32 << 4) as u32
}

/// Fills a panel with a checkpoint's codes.
pub(super) struct Put<'a> {
    pub(super) panel: Panel<'a>,
    pub(super) codes: &'a [u8],
    pub(super) scales: &'a [f32],
    pub(super) zeros: Option<&'a [u8]>,
}

impl Kernel for Put<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { mut panel, codes, scales, zeros } = self;
        let (depth, groups, each) = (panel.depth, panel.groups(), panel.codes_of_word());
        for (vector, codes) in codes.chunks(LANES * depth).enumerate() {
            let columns = codes.len() / depth;
            let of_groups = vector * LANES * groups..(vector * LANES + columns) * groups;
            let scales = &scales[of_groups.clone()];
            panel.put_scales(vector, |column, group| scales[column * groups + group], columns);
            if let Some(zeros) = zeros {
                panel.put_zeros(vector, &zeros[of_groups]);
            }
            for first in (0..depth.div_ceil(each)).step_by(LANES) {
                let mut block = Block::default();
                for (row, block) in codes.chunks_exact(depth).zip(&mut block) {
                    let codes = &row[first * each..depth.min((first + LANES) * each)];
                    match panel.bits {
                        Bits::Eight => words_of_bytes(codes, block),
                        Bits::Four => {
                            let mut whole = [0; 8 * LANES];
                            whole[..codes.len()].copy_from_slice(codes);
                            words_of_halves(&whole, block);
                        }
                    }
                }
                panel.put(simd, vector, first, block);
            }
        }
        simd.drain();
    }
}

/// Codes of 8 bits as words, filled up with zeros.
#[inline(always)]
fn words_of_bytes(codes: &[u8], words: &mut Lanes<u32>) {
    bytemuck::bytes_of_mut(words)[..codes.len()].copy_from_slice(codes);
}

/// Codes of 4 bits as words.
#[inline(always)]
fn words_of_halves(codes: &[u8; 8 * LANES], words: &mut Lanes<u32>) {
    for (word, codes) in words.iter_mut().zip(codes.as_chunks::<8>().0) {
        *word = join(*codes);
    }
}

#[cfg(test)]
mod tests;
