//! Bytes as hexadecimal digits.

use std::fmt;

/// Bytes that are shown as hexadecimal digits, two for each, in lower case.
#[derive(Debug, Clone, Copy)]
pub struct Hex<'a>(pub &'a [u8]);

/// So many bytes are turned at a time.
const PART: usize = 32;

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut pairs = [[0; 2]; PART];
        for part in self.0.chunks(PART) {
            for (pair, byte) in pairs.iter_mut().zip(part) {
                *pair = [byte >> 4, byte & 15].map(|four| DIGITS[usize::from(four)]);
            }
            let digits = str::from_utf8(pairs[..part.len()].as_flattened());
            f.write_str(digits.map_err(|_| fmt::Error)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_two_digits_in_its_place() {
        assert_eq!(Hex(&[]).to_string(), "");
        assert_eq!(Hex(b"\x00\x0f\xf0\xff").to_string(), "000ff0ff");
        for size in [PART - 1, PART, PART + 1, 3 * PART + 1] {
            let bytes: Vec<u8> = (0..size).map(|n| u8::try_from(n % 251).unwrap()).collect();
            let plain: String = bytes.iter().map(|b| format!("{b:02x}")).collect();

            assert_eq!(Hex(&bytes).to_string(), plain);
        }
    }
}
