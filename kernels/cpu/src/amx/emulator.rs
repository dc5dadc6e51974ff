//! Tiles where the processor has none, for tests: the signal of an unknown instruction (SIGILL) is taken, the instruction is done here and
//! stepped over. What runs is the very assembly that runs on tiles, far more slowly.
//!
//! Only the instructions that this crate has are known, of 64-bit code, with the sizes of palette 1. Whatever else raises the signal, or
//! would fault on a processor that has tiles, goes to who took the signal before.
//!
//! Invariant: a thread's tiles are touched by its handler alone, which no other signal of this kind interrupts (it has no such
//! instruction), and memory only where the instruction's own thread asked for it, which vouches for it as on a processor with tiles.

use std::arch::asm;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::{mem, ptr};

use libc::{c_int, c_void, greg_t, sigaction, siginfo_t, ucontext_t};

use super::{Config, ROW, TILE_ROWS, TILE_WORDS};

/// Who took the signal before, never freed; there once tiles are emulated.
static BEFORE: AtomicPtr<sigaction> = AtomicPtr::new(ptr::null_mut());

/// Whether tiles are emulated in this process.
pub(super) fn is_on() -> bool {
    !BEFORE.load(Ordering::Acquire).is_null()
}

/// Emulates tiles from now on, on all threads, or once more, if somebody else has taken the signal since. The processor has the class that
/// tiles come with: AVX-512 with BF16.
pub(super) fn turn_on() {
    // SAFETY: all fields may be zero; the handler has the signature that `SA_SIGINFO` promises, and stays as long as the process.
    unsafe {
        let (mut ours, mut before) = (mem::zeroed::<sigaction>(), mem::zeroed::<sigaction>());
        ours.sa_sigaction = on_unknown as *const () as usize;
        ours.sa_flags = libc::SA_SIGINFO;
        assert!(sigaction(libc::SIGILL, ptr::null(), &raw mut before) == 0, "a signal that exists");
        // Of the first time: who has taken it since may hand it back to us. There before the handler may ask for it; one of two threads that
        // do this at once leaves a copy behind.
        if !is_on() {
            BEFORE.store(Box::into_raw(Box::new(before)), Ordering::Release);
        }
        assert!(sigaction(libc::SIGILL, &raw const ours, ptr::null_mut()) == 0, "a signal that exists");
    }
}

/// # Safety
/// The system calls it, with the state of a thread that met an unknown instruction.
unsafe extern "C" fn on_unknown(_: c_int, _: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: with `SA_SIGINFO` this is what the third argument points to, and nobody else has it meanwhile.
    let registers = unsafe { &mut (*context.cast::<ucontext_t>()).uc_mcontext.gregs };
    let begin = registers[libc::REG_RIP as usize];
    let mut at = begin;
    // One signal for all that stand in a row: it takes the most time.
    // SAFETY: the thread stands before an instruction, or would after the one that was done; its tiles are ours by the module's invariant.
    while let Some(length) = unsafe { step(at as *const u8, registers) } {
        at += length as greg_t;
    }
    registers[libc::REG_RIP as usize] = at;
    if at == begin {
        // The instruction begins anew, and meets who was there before.
        // SAFETY: a handler that the system gave us; it was there before this one was.
        unsafe { sigaction(libc::SIGILL, BEFORE.load(Ordering::Acquire), ptr::null_mut()) };
    }
}

/// Does the instruction that begins here and returns its length, if it is one for tiles that can be done.
///
/// # Safety
/// An instruction begins here, which the thread is about to run.
unsafe fn step(at: *const u8, registers: &[greg_t; 23]) -> Option<usize> {
    let mut code = Code { at, length: 0 };
    // SAFETY: the caller vouches for the code; a thread's tiles are touched here alone.
    unsafe {
        let instruction = Instruction::read(&mut code, registers)?;
        TILES.with(|tiles| (*tiles.get()).execute(instruction)).then_some(code.length)
    }
}

/// The bytes behind the pointer, one after the other.
struct Code {
    at: *const u8,
    length: usize,
}

impl Code {
    /// # Safety
    /// What was read so far is the beginning of an instruction that goes on.
    unsafe fn byte(&mut self) -> u8 {
        self.length += 1;
        // SAFETY: the caller vouches for it.
        unsafe { *self.at.add(self.length - 1) }
    }
}

/// Numbers of tiles, and where rows lie in memory.
#[derive(Debug, PartialEq, Eq)]
enum Instruction {
    Configure { from: usize },
    Release,
    Zero { tile: u8 },
    Load { tile: u8, rows: Rows },
    Store { tile: u8, rows: Rows },
    Multiply { of: Neighbours, sums: u8, x: u8, weights: u8 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Neighbours {
    /// `tdpbf16ps`.
    Pairs,
    /// `tdpbsud`: signed with unsigned.
    Quads,
}

/// Addresses: of the first row, and from one to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rows {
    first: usize,
    apart: usize,
}

/// By the number that instructions have for them.
const NAMES: [c_int; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

impl Instruction {
    /// The one that begins here: three bytes of prefix (VEX), operation, operands.
    ///
    /// # Safety
    /// An instruction begins here.
    unsafe fn read(code: &mut Code, registers: &[greg_t; 23]) -> Option<Self> {
        // SAFETY: a byte is read only where those before say that the instruction goes on.
        unsafe {
            if code.byte() != 0xc4 {
                return None;
            }
            let (map, kind) = (code.byte(), code.byte());
            // The second map of operations, of 32 bits and 128; the prefix is the last two bits.
            if map & 0x1f != 2 || kind & 0x84 != 0 {
                return None;
            }
            let (operation, operands) = (code.byte(), code.byte());
            let (tile, other) = (operands >> 3 & 7, operands & 7);
            let is_memory = operands >> 6 != 3;
            let instruction = match (operation, kind & 3) {
                (0x49, 0) if operands == 0xc0 => Self::Release,
                (0x49, 0) if is_memory && tile == 0 => {
                    let Rows { first, apart } = place(code, map, operands, registers)?;
                    Self::Configure { from: first.wrapping_add(apart) }
                }
                (0x49, 3) if !is_memory && other == 0 => Self::Zero { tile },
                (0x4b, 3) if is_memory && other == 4 => {
                    Self::Load { tile, rows: place(code, map, operands, registers)? }
                }
                (0x4b, 2) if is_memory && other == 4 => {
                    Self::Store { tile, rows: place(code, map, operands, registers)? }
                }
                (0x5c | 0x5e, 2) if !is_memory => {
                    let of = if operation == 0x5c { Neighbours::Pairs } else { Neighbours::Quads };
                    Self::Multiply { of, sums: tile, x: other, weights: !(kind >> 3) & 0xf }
                }
                _ => return None,
            };
            Some(instruction)
        }
    }
}

/// The place in memory that the operands name: base and displacement, and the scaled index.
///
/// # Safety
/// The operands of an instruction with a place in memory were read last.
unsafe fn place(code: &mut Code, map: u8, operands: u8, registers: &[greg_t; 23]) -> Option<Rows> {
    let high = |bit: u8, low: u8| usize::from(low) | if map & bit == 0 { 8 } else { 0 };
    let register = |number: usize| registers[NAMES[number] as usize] as usize;
    let (mode, mut base, mut apart) = (operands >> 6, operands & 7, 0);
    if base == 4 {
        // SAFETY: these operands have a byte for base, index and scale.
        let more = unsafe { code.byte() };
        base = more & 7;
        let index = high(0x40, more >> 3 & 7);
        // The stack's pointer stands for none.
        apart = if index == 4 { 0 } else { register(index) << (more >> 6) };
    }
    if mode == 0 && base == 5 {
        return None; // by the instruction's own address, or by none: not in our assembly
    }
    let shift = match mode {
        0 => 0,
        // SAFETY: a displacement of one byte follows.
        1 => isize::from(unsafe { code.byte() } as i8),
        // SAFETY: of four.
        _ => i32::from_le_bytes(std::array::from_fn(|_| unsafe { code.byte() })) as isize,
    };
    Some(Rows { first: register(high(0x20, base)).wrapping_add_signed(shift), apart })
}

type Tile = [[u32; TILE_WORDS]; TILE_ROWS];

/// What a thread's processor would hold.
struct State {
    /// Rows of each tile, and words of each row; 0: none are configured.
    sizes: [(usize, usize); 8],
    tiles: [Tile; 8],
}

impl State {
    const EMPTY: Self = Self { sizes: [(0, 0); 8], tiles: [[[0; TILE_WORDS]; TILE_ROWS]; 8] };
}

thread_local! {
    // Made of constants and never dropped, so that a handler may have it: the signal comes from an instruction of ours, in no allocation.
    static TILES: UnsafeCell<State> = const { UnsafeCell::new(State::EMPTY) };
}

impl State {
    /// Whether it could be done.
    ///
    /// # Safety
    /// The memory that it names is the thread's to read, or written for a store. The processor has AVX-512.
    unsafe fn execute(&mut self, instruction: Instruction) -> bool {
        match instruction {
            Instruction::Configure { from } => {
                // SAFETY: the caller vouches for 64 bytes.
                let config = unsafe { ptr::read_unaligned(from as *const Config) };
                return self.configure(&config);
            }
            Instruction::Release => *self = Self::EMPTY,
            Instruction::Zero { tile } if self.has(tile) => self.tiles[usize::from(tile)] = State::EMPTY.tiles[0],
            Instruction::Load { tile, rows } if self.has(tile) => {
                let (count, words) = self.sizes[usize::from(tile)];
                let mut loaded = State::EMPTY.tiles[0];
                for (row, to) in loaded[..count].iter_mut().enumerate() {
                    let from = rows.first.wrapping_add(row.wrapping_mul(rows.apart)) as *const u8;
                    // SAFETY: the caller vouches for a row; ours is as long at least.
                    unsafe { ptr::copy_nonoverlapping(from, to.as_mut_ptr().cast(), 4 * words) };
                }
                self.tiles[usize::from(tile)] = loaded;
            }
            Instruction::Store { tile, rows } if self.has(tile) => {
                let (count, words) = self.sizes[usize::from(tile)];
                for (row, from) in self.tiles[usize::from(tile)][..count].iter().enumerate() {
                    let to = rows.first.wrapping_add(row.wrapping_mul(rows.apart)) as *mut u8;
                    // SAFETY: as above.
                    unsafe { ptr::copy_nonoverlapping(from.as_ptr().cast(), to, 4 * words) };
                }
            }
            Instruction::Multiply { of, sums, x, weights } if [sums, x, weights].iter().all(|tile| self.has(*tile)) => {
                let [sums, x, weights] = [sums, x, weights].map(usize::from);
                let ((rows, columns), deep) = (self.sizes[sums], self.sizes[x].1);
                let fits = self.sizes[x].0 == rows && self.sizes[weights] == (deep, columns);
                if !fits || sums == x || sums == weights || x == weights {
                    return false;
                }
                let (x, weights) = (self.tiles[x], self.tiles[weights]);
                for (sums, x) in self.tiles[sums][..rows].iter_mut().zip(&x) {
                    match of {
                        // SAFETY: the caller vouches for AVX-512.
                        Neighbours::Pairs => unsafe { add_pairs(sums, &x[..deep], &weights) },
                        Neighbours::Quads => add_quads(sums, &x[..deep], &weights),
                    }
                }
            }
            _ => return false,
        }
        true
    }

    fn has(&self, tile: u8) -> bool {
        self.sizes.get(usize::from(tile)).is_some_and(|size| size.0 > 0)
    }

    fn configure(&mut self, config: &Config) -> bool {
        *self = Self::EMPTY;
        if config.palette == 0 {
            return true;
        }
        let sizes = config.rows.iter().zip(config.row_bytes);
        let sizes = sizes.map(|(rows, bytes)| (usize::from(*rows), usize::from(bytes)));
        let are_allowed = sizes.clone().enumerate().all(|(tile, (rows, bytes))| {
            let is_none = (rows, bytes) == (0, 0);
            is_none || tile < 8 && (1..=TILE_ROWS).contains(&rows) && bytes > 0 && bytes <= ROW && bytes % 4 == 0
        });
        if config.palette != 1 || config.start_row != 0 || config.reserved != [0; 14] || !are_allowed {
            return false;
        }
        for (to, (rows, bytes)) in self.sizes.iter_mut().zip(sizes) {
            *to = (rows, bytes / 4);
        }
        true
    }
}

/// Of all pairs the first and the second, each fused and in order; then both, then what was there. Subnormals are 0, before and after.
///
/// # Safety
/// The processor has AVX-512.
#[target_feature(enable = "avx512f,fma")]
#[inline(never)]
unsafe fn add_pairs(sums: &mut [u32; TILE_WORDS], x: &[u32], weights: &Tile) {
    /// Subnormals are 0 (`DAZ`, `FTZ`), no exception is raised, rounding to nearest.
    static AS_TILES: u32 = 1 << 15 | 1 << 6 | 0x1f80;
    // SAFETY: a handler's control word is its own: the system puts back the thread's.
    unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const AS_TILES, options(nostack)) };
    let (first, second) = (|word: u32| f32::from_bits(word << 16), |word: u32| f32::from_bits(word & 0xffff_0000));
    let mut both = [[0.0_f32; TILE_WORDS]; 2];
    for (x, weights) in x.iter().zip(weights) {
        for (column, weight) in weights.iter().enumerate() {
            both[0][column] = first(*x).mul_add(first(*weight), both[0][column]);
            both[1][column] = second(*x).mul_add(second(*weight), both[1][column]);
        }
    }
    for (column, sum) in sums.iter_mut().enumerate() {
        *sum = (f32::from_bits(*sum) + (both[0][column] + both[1][column])).to_bits();
    }
}

/// Four signed bytes times four unsigned ones, exactly.
fn add_quads(sums: &mut [u32; TILE_WORDS], x: &[u32], weights: &Tile) {
    for (x, weights) in x.iter().zip(weights) {
        for (sum, weight) in sums.iter_mut().zip(weights) {
            for byte in 0..4 {
                let product = i32::from((x >> (8 * byte)) as i8) * i32::from((weight >> (8 * byte)) as u8);
                *sum = sum.wrapping_add(product as u32);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Option<(Instruction, usize)> {
        let mut registers = [0; 23];
        for (number, name) in NAMES.into_iter().enumerate() {
            registers[name as usize] = 1000 * (number as greg_t + 1);
        }
        let padded = [bytes, &[0x90; 15]].concat();
        let mut code = Code { at: padded.as_ptr(), length: 0 };
        // SAFETY: 15 more bytes than the instruction has.
        unsafe { Instruction::read(&mut code, &registers) }.map(|found| (found, code.length))
    }

    /// Against the bytes that an assembler makes of them.
    #[test]
    fn instructions_are_read_as_assemblers_write_them() {
        let rows = |first, apart| Rows { first, apart };
        let known: [(&[u8], Instruction); 9] = [
            // ldtilecfg [rax]; ldtilecfg [r12 + 8]; tilerelease; tilezero tmm3
            (&[0xc4, 0xe2, 0x78, 0x49, 0x00], Instruction::Configure { from: 1000 }),
            (&[0xc4, 0xc2, 0x78, 0x49, 0x44, 0x24, 0x08], Instruction::Configure { from: 13_008 }),
            (&[0xc4, 0xe2, 0x78, 0x49, 0xc0], Instruction::Release),
            (&[0xc4, 0xe2, 0x7b, 0x49, 0xd8], Instruction::Zero { tile: 3 }),
            // tileloadd tmm4, [rdi + rsi]; tileloadd tmm7, [r13 + r9 + 1024]; tilestored [rcx + 2 * rdx - 64], tmm1
            (&[0xc4, 0xe2, 0x7b, 0x4b, 0x24, 0x37], Instruction::Load { tile: 4, rows: rows(8000, 7000) }),
            (
                &[0xc4, 0x82, 0x7b, 0x4b, 0xbc, 0x0d, 0x00, 0x04, 0x00, 0x00],
                Instruction::Load { tile: 7, rows: rows(15_024, 10_000) },
            ),
            (&[0xc4, 0xe2, 0x7a, 0x4b, 0x4c, 0x51, 0xc0], Instruction::Store { tile: 1, rows: rows(1936, 6000) }),
            // tdpbf16ps tmm2, tmm5, tmm6; tdpbsud tmm0, tmm4, tmm7
            (
                &[0xc4, 0xe2, 0x4a, 0x5c, 0xd5],
                Instruction::Multiply { of: Neighbours::Pairs, sums: 2, x: 5, weights: 6 },
            ),
            (
                &[0xc4, 0xe2, 0x42, 0x5e, 0xc4],
                Instruction::Multiply { of: Neighbours::Quads, sums: 0, x: 4, weights: 7 },
            ),
        ];
        for (bytes, instruction) in known {
            assert_eq!(read(bytes), Some((instruction, bytes.len())), "{bytes:x?}");
        }
        // ud2; vmovaps; tdpbssd, which no kernel has.
        for bytes in [&[0x0f, 0x0b][..], &[0xc5, 0xf8, 0x28, 0xc1], &[0xc4, 0xe2, 0x43, 0x5e, 0xc4]] {
            assert_eq!(read(bytes), None, "{bytes:x?}");
        }
    }

    /// As the processor does, whose tests these are where it has tiles: what does not fit is no product.
    #[test]
    fn tiles_that_do_not_fit_each_other_are_refused() {
        let multiply = |sums, x, weights| Instruction::Multiply { of: Neighbours::Quads, sums, x, weights };
        let mut state = Box::new(State::EMPTY);
        // SAFETY: no memory is named.
        unsafe {
            assert!(!state.execute(Instruction::Zero { tile: 0 }), "nothing is configured");
            state.sizes = [(3, 16), (3, 16), (3, 16), (4, 16), (3, 5), (3, 5), (5, 16), (5, 16)];
            assert!(state.execute(multiply(0, 4, 6)));
            assert!(!state.execute(multiply(0, 0, 6)) && !state.execute(multiply(3, 4, 6)));
            assert!(!state.execute(multiply(0, 4, 5)) && !state.execute(multiply(0, 4, 9)));
        }
    }
}
