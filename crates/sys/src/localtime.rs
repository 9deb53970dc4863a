//! Local time, by the time zone of the C library. localtime_r(3).

/// A local time in the process's time zone (`TZ`, or else /etc/localtime).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local {
    /// Year, such as 2026.
    pub year: i32,
    /// Month, 1 to 12.
    pub month: u32,
    /// Day of the month, 1 to 31.
    pub day: u32,
    /// Hour, 0 to 23.
    pub hour: u32,
    /// Minute, 0 to 59.
    pub minute: u32,
    /// Second, 0 to 60.
    pub second: u32,
    /// Day of the week, 0 is Sunday.
    pub weekday: u32,
    /// Seconds east of UTC.
    pub offset: i32,
}

/// The local time of `unix`, in seconds since 1970 (UTC).
///
/// For a time that the C library cannot represent, this is the start of 1970 in UTC.
pub fn local(unix: i64) -> Local {
    // SAFETY: `tm` is plain old data for which all zeroes are a valid value.
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are valid for the call; localtime_r is thread-safe. It reads TZ,
    // which the server changes only while it has a single thread.
    let done = unsafe { libc::localtime_r(&unix, &mut tm) };
    if done.is_null() {
        return Local {
            year: 1970,
            month: 1,
            day: 1,
            hour: 0,
            minute: 0,
            second: 0,
            weekday: 4,
            offset: 0,
        };
    }
    Local {
        year: tm.tm_year.saturating_add(1900),
        month: tm.tm_mon as u32 + 1,
        day: tm.tm_mday as u32,
        hour: tm.tm_hour as u32,
        minute: tm.tm_min as u32,
        second: tm.tm_sec as u32,
        weekday: tm.tm_wday as u32,
        offset: tm.tm_gmtoff as i32,
    }
}

/// The abbreviation of the time zone in force at `unix`, such as `CET`.
pub fn zone(unix: i64) -> String {
    // SAFETY: `tm` is plain old data for which all zeroes are a valid value.
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: as in `local`.
    let done = unsafe { libc::localtime_r(&unix, &mut tm) };
    if done.is_null() || tm.tm_zone.is_null() {
        return "UTC".to_owned();
    }
    // SAFETY: the C library set it to a string of its own that lasts at least until the zone changes,
    // which the server's threads never do.
    let name = unsafe { std::ffi::CStr::from_ptr(tm.tm_zone) };
    name.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::local;

    #[test]
    fn local_time_is_utc_plus_its_own_offset() {
        for unix in [0_i64, 951_782_399, 1_763_624_982, 4_102_444_800] {
            let t = local(unix);
            let of_day = (unix + i64::from(t.offset)).rem_euclid(86_400);
            let said = i64::from(t.hour) * 3600 + i64::from(t.minute) * 60 + i64::from(t.second);
            assert_eq!(said, of_day);
            let days = (unix + i64::from(t.offset)).div_euclid(86_400);
            assert_eq!(i64::from(t.weekday), (days + 4).rem_euclid(7));
        }
    }

    #[test]
    fn an_impossible_time_is_not_a_panic() {
        assert_eq!(local(i64::MAX).year, 1970);
    }
}
