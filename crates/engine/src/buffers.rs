//! The loop's buffers, kept by size between reads.

/// The smallest and largest size that is kept: 2^9 to 2^18 bytes. Other buffers are allocated and
/// freed as usual.
const SMALLEST: u32 = 9;
const LARGEST: u32 = 18;
const CLASSES: usize = (LARGEST - SMALLEST + 1) as usize;
/// Bytes kept per size. The allocator gets back what a burst needed beyond that.
const KEPT_BYTES: usize = 1 << 20;

pub(crate) struct Buffers {
    classes: [Vec<Vec<u8>>; CLASSES],
}

impl Buffers {
    pub(crate) fn new() -> Self {
        Buffers { classes: Default::default() }
    }

    /// An empty buffer for at least `capacity` bytes.
    pub(crate) fn take(&mut self, capacity: usize) -> Vec<u8> {
        let class = ceil_log2(capacity.max(1)).max(SMALLEST);
        if class > LARGEST {
            return Vec::with_capacity(capacity);
        }
        let kept = self.classes.get_mut((class - SMALLEST) as usize).and_then(Vec::pop);
        kept.unwrap_or_else(|| Vec::with_capacity(1 << class))
    }

    /// Keeps `buffer` for the next [`Buffers::take`] of its size.
    pub(crate) fn give(&mut self, mut buffer: Vec<u8>) {
        let Some(class) = buffer.capacity().checked_ilog2() else { return };
        if !(SMALLEST..=LARGEST).contains(&class) {
            return;
        }
        if let Some(kept) = self.classes.get_mut((class - SMALLEST) as usize)
            && kept.len() < KEPT_BYTES >> class
        {
            buffer.clear();
            kept.push(buffer);
        }
    }

    /// Frees all buffers that are kept.
    pub(crate) fn clear(&mut self) {
        self.classes = Default::default();
    }
}

fn ceil_log2(n: usize) -> u32 {
    usize::BITS - (n - 1).leading_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_empty_and_large_enough() {
        let mut buffers = Buffers::new();
        for capacity in [0, 1, 511, 512, 513, 4096, 5000, 262_144, 262_145, 1_000_000] {
            let mut buffer = buffers.take(capacity);
            assert!(buffer.is_empty() && buffer.capacity() >= capacity);
            buffer.push(1);
            buffers.give(buffer);
            let again = buffers.take(capacity);
            assert!(again.is_empty() && again.capacity() >= capacity, "{capacity}");
            buffers.give(again);
        }
    }

    #[test]
    fn the_same_memory_serves_again() {
        let mut buffers = Buffers::new();
        let buffer = buffers.take(4096);
        let at = buffer.as_ptr();
        buffers.give(buffer);
        let again = buffers.take(3000);
        assert_eq!(again.as_ptr(), at);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut buffers = Buffers::new();
        for _ in 0..1000 {
            buffers.give(Vec::with_capacity(1 << 16));
        }
        let kept: usize = buffers.classes.iter().flatten().map(Vec::capacity).sum();
        assert!(kept <= KEPT_BYTES, "{kept}");
    }
}
