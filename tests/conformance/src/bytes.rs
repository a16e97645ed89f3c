//! Test data: unlike bytes, tokens and the checksum that `cksum` prints.

use std::{
    hash::{BuildHasher, RandomState},
    sync::atomic::{AtomicU64, Ordering},
};

/// A token of 16 hexadecimal digits that no other case has.
pub(crate) fn token() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    // The hasher is seeded by the system; the count makes two calls differ.
    format!("{:016x}", RandomState::new().hash_one(COUNT.fetch_add(1, Ordering::Relaxed)))
}

/// So many bytes without a pattern that a faulty copy could keep by chance (xorshift).
pub(crate) fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ length as u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// The checksum that POSIX `cksum` prints.
pub(crate) fn cksum(bytes: &[u8]) -> u32 {
    let table = cksum_table();
    let step = |sum: u32, byte: u8| (sum << 8) ^ table[((sum >> 24) as u8 ^ byte) as usize];
    let mut sum = bytes.iter().fold(0, |sum, byte| step(sum, *byte));
    let mut length = bytes.len();
    while length > 0 {
        sum = step(sum, length as u8);
        length >>= 8;
    }
    !sum
}

fn cksum_table() -> [u32; 256] {
    std::array::from_fn(|index| {
        (0..8).fold(
            (index as u32) << 24,
            |sum, _| {
                if sum & 0x8000_0000 == 0 { sum << 1 } else { (sum << 1) ^ 0x04c1_1db7 }
            },
        )
    })
}

#[cfg(test)]
mod tests {
    use super::{cksum, noise, token};

    #[test]
    fn the_checksum_is_the_one_of_the_program() {
        // printf '' | cksum; printf 123456789 | cksum
        assert_eq!(cksum(b""), 4_294_967_295);
        assert_eq!(cksum(b"123456789"), 930_766_865);
    }

    #[test]
    fn tokens_differ_and_noise_has_its_length() {
        assert_ne!(token(), token());
        for length in [0, 1, 7, 8, 9, 16_383] {
            assert_eq!(noise(length).len(), length);
        }
    }
}
