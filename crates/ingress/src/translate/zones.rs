//! Shared memory for the state of upstream servers.
//!
//! Running workers take a new configuration if its zones are open already. One with another zone
//! needs new workers, and the old ones stay until their last client leaves. So all groups share a
//! few zones, which are open from the first configuration on. A new group or more pods then need no
//! new zone.

use weir_conf::Directive;

use super::lines::line;
use super::servers::{LEAST, room};

/// The number of shared zones. Each has a lock, which a request takes to choose a server.
const ZONES: u8 = 4;
/// The size of each, enough for 12,000 servers. Unused pages take no memory.
const SIZE: &str = "8m";

fn name(number: u8) -> String {
    format!("servers_{number}")
}

/// The `zone` of a group. A group of more than [`LEAST`] servers has a zone of its own.
pub(crate) fn zone(group: &str, servers: usize) -> Directive {
    if servers > LEAST {
        // A server takes 680 bytes.
        let size = room(servers) * 1024;
        return line("zone", [group, &size.to_string()]);
    }
    // FNV-1a, so that a name has the same number in each process.
    let hash = group
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    line("zone", [name(hash.to_le_bytes()[3] % ZONES).as_str(), SIZE])
}

/// Groups without requests that keep the shared zones open.
pub(super) fn keepers() -> impl Iterator<Item = Directive> {
    (0..ZONES).map(|number| {
        let name = name(number);
        let zone = line("zone", [name.as_str(), SIZE]);
        line("upstream", [name.as_str()])
            .with_block(vec![zone, line("server", ["127.0.0.1:1", "down"])])
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn words(directive: &Directive) -> Vec<String> {
        directive.args.iter().map(|word| word.lossy().into_owned()).collect()
    }

    #[test]
    fn groups_share_zones_that_are_always_open() {
        let open: BTreeSet<_> = keepers().map(|keeper| words(&keeper.block()[0])).collect();
        assert_eq!(open.len(), usize::from(ZONES));
        let used: BTreeSet<_> = (0..100).map(|n| words(&zone(&format!("a_s{n}_80"), n))).collect();
        assert_eq!(used, open);
        // Whatever the number of its pods is.
        assert_eq!(words(&zone("a_b_80", 1)), words(&zone("a_b_80", LEAST)));
        assert_eq!(words(&zone("a_b_80", 3000)), ["a_b_80", "4194304"]);
    }
}
