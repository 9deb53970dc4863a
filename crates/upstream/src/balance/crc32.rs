//! CRC-32 as Ethernet and zlib have it.

/// A sum under way.
#[derive(Debug, Clone)]
pub struct Crc32(u32);

impl Crc32 {
    /// Of nothing yet.
    pub fn new() -> Crc32 {
        Crc32(!0)
    }

    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        for byte in bytes {
            let index = (self.0 ^ u32::from(*byte)) & 0xff;
            self.0 = TABLE[index as usize] ^ (self.0 >> 8);
        }
    }

    /// The sum.
    pub fn finish(&self) -> u32 {
        !self.0
    }
}

static TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut c = i as u32;
        let mut bit = 0;
        while bit < 8 {
            c = if c & 1 == 1 { 0xedb8_8320 ^ (c >> 1) } else { c >> 1 };
            bit += 1;
        }
        table[i] = c;
        i += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_value_of_the_standard() {
        let mut crc = Crc32::new();
        crc.update(b"1234");
        crc.update(b"56789");
        assert_eq!(crc.finish(), 0xcbf4_3926);
    }
}
