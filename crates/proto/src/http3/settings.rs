//! What an end of a connection accepts: RFC 9114 section 7.2.4, RFC 9204 section 5, RFC 9220.

use std::fmt;

use super::{frame, varint};

const QPACK_MAX_TABLE_CAPACITY: u64 = 0x1;
const MAX_FIELD_SECTION_SIZE: u64 = 0x6;
const QPACK_BLOCKED_STREAMS: u64 = 0x7;
const ENABLE_CONNECT_PROTOCOL: u64 = 0x8;

/// The settings of one end. What a frame does not say is as in [`Settings::default`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// How large the other end may make its table of fields.
    pub qpack_table: u64,
    /// How many streams may wait for entries of that table.
    pub qpack_blocked: u64,
    /// The largest section of fields, counted with 32 bytes for each field beside its name and value.
    pub field_section: Option<u64>,
    /// Whether the sender, a server, serves CONNECT with `:protocol`.
    pub connect_protocol: bool,
}

/// What is wrong with settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingsError {
    /// They end within a number.
    Truncated,
    /// The same one twice.
    Duplicate(u64),
    /// One that HTTP/2 alone has.
    Http2(u64),
    /// A value that the setting cannot have.
    BadValue(u64, u64),
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingsError::Truncated => f.write_str("incorrect length"),
            SettingsError::Duplicate(id) => write!(f, "duplicate setting {id:#x}"),
            SettingsError::Http2(id) => write!(f, "setting {id:#x} of HTTP/2"),
            SettingsError::BadValue(id, value) => {
                write!(f, "incorrect value {value} of setting {id:#x}")
            }
        }
    }
}

impl Settings {
    /// Reads a payload.
    pub fn parse(mut payload: &[u8]) -> Result<Settings, SettingsError> {
        let (mut settings, mut seen) = (Settings::default(), Vec::new());
        while !payload.is_empty() {
            let id = varint::take(&mut payload).ok_or(SettingsError::Truncated)?;
            let value = varint::take(&mut payload).ok_or(SettingsError::Truncated)?;
            match id {
                QPACK_MAX_TABLE_CAPACITY => settings.qpack_table = value,
                MAX_FIELD_SECTION_SIZE => settings.field_section = Some(value),
                QPACK_BLOCKED_STREAMS => settings.qpack_blocked = value,
                ENABLE_CONNECT_PROTOCOL if value > 1 => {
                    return Err(SettingsError::BadValue(id, value));
                }
                ENABLE_CONNECT_PROTOCOL => settings.connect_protocol = value == 1,
                0x0 | 0x2..=0x5 => return Err(SettingsError::Http2(id)),
                _ => {}
            }
            seen.push(id);
        }
        seen.sort_unstable();
        match seen.windows(2).find(|pair| pair.first() == pair.last()) {
            Some(&[id, ..]) => Err(SettingsError::Duplicate(id)),
            _ => Ok(settings),
        }
    }

    /// Appends the frame. It has no setting that says what a missing one says.
    pub fn write(&self, out: &mut Vec<u8>) {
        let Settings { qpack_table, qpack_blocked, field_section, connect_protocol } = *self;
        let entries = [
            (QPACK_MAX_TABLE_CAPACITY, Some(qpack_table).filter(|size| *size > 0)),
            (MAX_FIELD_SECTION_SIZE, field_section),
            (QPACK_BLOCKED_STREAMS, Some(qpack_blocked).filter(|most| *most > 0)),
            (ENABLE_CONNECT_PROTOCOL, connect_protocol.then_some(1)),
        ];
        let entries = entries.into_iter().filter_map(|(id, value)| value.map(|value| (id, value)));
        let len = entries.clone().map(|(id, value)| varint::len(id) + varint::len(value)).sum();
        frame::write_settings_head(len, out);
        for (id, value) in entries {
            varint::write(id, out);
            varint::write(value, out);
        }
    }
}
