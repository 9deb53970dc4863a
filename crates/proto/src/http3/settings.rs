//! SETTINGS: RFC 9114, section 7.2.4; RFC 9204, section 5; RFC 9220.

use std::fmt;

use super::{frame, varint};

const QPACK_MAX_TABLE_CAPACITY: u64 = 0x1;
const MAX_FIELD_SECTION_SIZE: u64 = 0x6;
const QPACK_BLOCKED_STREAMS: u64 = 0x7;
const ENABLE_CONNECT_PROTOCOL: u64 = 0x8;

/// The settings of one end. The default has the values of missing settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// SETTINGS_QPACK_MAX_TABLE_CAPACITY
    pub qpack_table: u64,
    /// SETTINGS_QPACK_BLOCKED_STREAMS
    pub qpack_blocked: u64,
    /// SETTINGS_MAX_FIELD_SECTION_SIZE, which counts 32 bytes for each field in addition to its name and value.
    pub field_section: Option<u64>,
    /// SETTINGS_ENABLE_CONNECT_PROTOCOL
    pub connect_protocol: bool,
}

/// A fault of a SETTINGS payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingsError {
    /// The payload ends within a number.
    Truncated,
    /// A setting occurs twice.
    Duplicate(u64),
    /// A setting of HTTP/2: RFC 9114, section 7.2.4.1.
    Http2(u64),
    /// A setting (first) with an invalid value (second).
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
    /// Parses a payload.
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

    /// Appends the frame. Settings with their default value are left out.
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
