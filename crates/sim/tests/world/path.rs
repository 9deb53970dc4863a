//! A network path of datagrams: delay, loss, duplication, damage.

use weir_testkit::Dice;

/// The properties of a path, in both directions.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// The delay of a datagram, and the most additional delay of some. These may be reordered.
    pub delay: u64,
    pub jitter: u64,
    /// One in this many datagrams is lost, duplicated or damaged. 0 is never.
    pub loses: usize,
    pub repeats: usize,
    pub damages: usize,
    /// Longer datagrams are dropped.
    pub longest: usize,
    /// All datagrams are dropped before this time.
    pub dark_until: u64,
}

impl Path {
    pub fn draw(dice: &mut Dice) -> Path {
        let delay = dice.pick(&[1_000, 500_000, 10_000_000, 100_000_000]);
        Path {
            delay,
            jitter: dice.pick(&[0, 0, delay / 2, 3 * delay]),
            loses: dice.pick(&[0, 0, 100, 20, 5]),
            repeats: dice.pick(&[0, 0, 50, 5]),
            damages: dice.pick(&[0, 0, 0, 100]),
            longest: dice.pick(&[1_200, 1_300, 1_452, 65_535]),
            dark_until: 0,
        }
    }

    /// Whether datagrams may be lost.
    pub fn is_lossy(&self) -> bool {
        self.loses + self.damages > 0 || self.dark_until > 0
    }

    /// The copies of a datagram that arrive: the delay of each, and whether it is damaged.
    pub fn carry(&self, dice: &mut Dice, now: u64, len: usize) -> Vec<(u64, bool)> {
        let some = |dice: &mut Dice, often: usize| often > 0 && dice.one_in(often);
        if now < self.dark_until || len > self.longest || some(dice, self.loses) {
            return Vec::new();
        }
        let times = if some(dice, self.repeats) { 2 } else { 1 };
        let mut one = || {
            let late = if dice.one_in(4) { dice.below(self.jitter as usize + 1) as u64 } else { 0 };
            (self.delay + late, some(dice, self.damages))
        };
        (0..times).map(|_| one()).collect()
    }
}
