//! Changes of a peer that an operator makes at run time. They override the configuration.

use crate::peer::PeerOptions;

/// Which requests a peer serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Duty {
    /// All requests.
    Up,
    /// Requests that are bound to the peer, and no others.
    Drain,
    /// None.
    Down,
}

/// The changed settings of a peer; `None` for the configured value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Changes {
    /// Which requests it serves.
    pub duty: Option<Duty>,
    /// The weight, from 1 to [`MOST_WEIGHT`].
    pub weight: Option<u32>,
}

/// The largest weight that an operator may set. It bounds sums of weights and the size of hash
/// rings.
pub const MOST_WEIGHT: u32 = 65_535;

impl Duty {
    /// The duty that the configuration gives.
    pub fn of(options: &PeerOptions) -> Duty {
        match (options.down, options.drain) {
            (true, _) => Duty::Down,
            (_, true) => Duty::Drain,
            _ => Duty::Up,
        }
    }

    /// The duty of this name.
    pub fn named(name: &str) -> Option<Duty> {
        Some(match name {
            "up" => Duty::Up,
            "drain" => Duty::Drain,
            "down" => Duty::Down,
            _ => return None,
        })
    }
}

impl Changes {
    /// Encodes the changes as a word of shared memory; 0 for none.
    pub fn to_word(self) -> u64 {
        let duty = match self.duty {
            None => 0,
            Some(Duty::Up) => 1,
            Some(Duty::Drain) => 2,
            Some(Duty::Down) => 3,
        };
        duty << 32 | u64::from(self.weight.unwrap_or(0))
    }

    /// Decodes a word of shared memory. Invalid parts count as no change.
    pub fn from_word(word: u64) -> Changes {
        let duty = match word >> 32 {
            1 => Some(Duty::Up),
            2 => Some(Duty::Drain),
            3 => Some(Duty::Down),
            _ => None,
        };
        let weight = Some(word as u32).filter(|weight| (1..=MOST_WEIGHT).contains(weight));
        Changes { duty, weight }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_read_back() {
        for duty in [None, Some(Duty::Up), Some(Duty::Drain), Some(Duty::Down)] {
            for weight in [None, Some(1), Some(MOST_WEIGHT)] {
                let changes = Changes { duty, weight };
                assert_eq!(Changes::from_word(changes.to_word()), changes);
            }
        }
        assert_eq!(Changes::default().to_word(), 0);
        assert_eq!(Changes::from_word(u64::MAX), Changes::default());
    }
}
