//! Names and values as protocols to scripts write them.

/// How a protocol writes a parameter.
pub trait Pairs {
    /// Appends a name. Its value is what is appended next, up to [`Pairs::end`].
    fn name(name: &[u8], out: &mut Vec<u8>) -> PendingValue;

    /// The value is complete.
    fn end(value: PendingValue, out: &mut Vec<u8>);

    /// Appends a name and its value.
    fn pair(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
        let place = Self::name(name, out);
        out.extend_from_slice(value);
        Self::end(place, out);
    }
}

/// Where a value stands that is being appended.
#[derive(Debug)]
pub struct PendingValue {
    /// Where its length stands, in protocols that say it.
    pub(crate) length: usize,
    /// Where it begins.
    pub start: usize,
}
