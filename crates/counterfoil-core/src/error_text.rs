//! How much of an error is kept.
//!
//! An error of a handler or a destination may be a whole page, or a dump of what it was given. It is
//! stored with the message, in its history and in the parking lot, and goes to the database together
//! with the errors of many others: without a bound, one of them is enough to make a statement larger
//! than the server takes.

/// The most bytes, and so the most characters, of an error that are kept.
pub const MAX_ERROR: usize = 4_000;

/// The sign that something was left out.
const CUT: &str = " …";

/// The beginning of an error that is too long, and any other as it is.
pub fn bounded(mut error: String) -> String {
    if error.len() > MAX_ERROR {
        let end = error.floor_char_boundary(MAX_ERROR - CUT.len());
        error.truncate(end);
        error.push_str(CUT);
        error.shrink_to_fit();
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_error_is_cut_between_two_characters() {
        for letter in ["x", "é", "語", "🦀"] {
            let cut = bounded(letter.repeat(MAX_ERROR + 1));

            assert!(cut.len() <= MAX_ERROR && cut.len() > MAX_ERROR - 8);
            assert!(cut.starts_with(letter) && cut.ends_with(CUT));
        }
    }

    #[test]
    fn an_error_that_fits_stays_as_it_is() {
        let error = "x".repeat(MAX_ERROR);

        assert_eq!(bounded(error.clone()), error);
    }
}
