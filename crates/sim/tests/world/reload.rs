//! Reloads, changes of the site, and the end of all workers. The workers of a new configuration
//! start beside the old ones.

use std::sync::Arc;

use weir_server::Generations;
use weir_testkit::Dice;

use crate::course::{Course, CourseEvent, MAX_TIME};

/// Draws when running workers take another site.
pub fn changes(seed: u64) -> Vec<u64> {
    let mut d = Dice::salted(seed, "changes");
    let count = if d.one_in(2) { d.pick(&[1, 5, 20]) } else { 0 };
    let mut one = || d.pick(&[100_000, 10_000_000, 1_000_000_000]);
    let most: Vec<u64> = (0..count).map(|_| one()).collect();
    most.into_iter().map(|most| d.below(most as usize) as u64).collect()
}

impl Course {
    /// Plans the next reload.
    pub fn plan_reload(&mut self) {
        if let Some((after, _)) = self.plan.reloads.last() {
            self.after(*after, CourseEvent::Reload);
        }
    }

    /// Starts the next generation of workers beside the present one.
    pub fn reload(&mut self) {
        let Some((_, config)) = self.plan.reloads.pop() else { return };
        std::fs::write(self.home.join("nginx.conf"), &config.text).expect("a configuration");
        self.world.note("reload", self.plan.reloads.len() as u64, 0);
        self.world.expect(self.plan.loops);
        if !self.generations.as_mut().is_some_and(Generations::reload) {
            return self.records.report("a configuration was not taken".to_owned());
        }
        self.plan.config = config;
        self.world.wait_for_start();
        let pause = self.dice.pick(&[0, 1_000_000, 500_000_000]);
        let pause = self.dice.below(pause + 1) as u64;
        self.after(pause, CourseEvent::Retire);
        self.after(pause, CourseEvent::Nothing);
        self.plan_reload();
    }

    /// Plans the next change.
    pub fn plan_change(&mut self) {
        if let Some(after) = self.plan.changes.get(self.changed) {
            self.after(*after, CourseEvent::Change);
        }
    }

    /// Gives the workers another site. Each answer shows the site in which its request was
    /// rewritten, and the site in which its head was sent.
    pub fn change(&mut self) {
        self.changed += 1;
        let n = self.changed;
        self.world.note("change", n as u64, 0);
        let text = self.plan.config.text.replacen(
            "http {\n",
            &format!("http {{\n    add_header X-Site $site/{n} always;\n"),
            1,
        );
        let text =
            text.replacen("        http2 on;\n", &format!("        http2 on; set $site {n};\n"), 1);
        let taken = self.generations.as_mut().is_some_and(|all| all.change(text.as_bytes()));
        if !taken {
            self.records.report("a running worker cannot take another site".to_owned());
        }
        self.world.note_events();
        self.plan_change();
    }

    /// Checks that each worker holds the newest site alone, since no request is left.
    pub fn check_sites(&mut self) {
        let Some(generations) = self.generations.as_ref().filter(|_| self.killed == 0) else {
            return;
        };
        let (sites, workers) = (generations.sites(), self.plan.config.processes as u64);
        if sites != workers {
            self.records.report(format!("{workers} workers hold {sites} sites"));
        }
    }

    /// Ends the server, and checks that it ends.
    pub fn quit(&mut self) {
        self.generations.iter_mut().for_each(Generations::quit);
        self.world.note_events();
        let end = self.world.now() + MAX_TIME;
        while !self.world.all_gone() && self.world.now() < end {
            if !self.step() && !self.world.all_gone() {
                self.records.report("the server does not end".to_owned());
                return;
            }
        }
    }

    /// Waits until all workers have ended. Returns their exit codes.
    pub fn end(&mut self) -> Vec<i32> {
        let Some(generations) = self.generations.take() else { return Vec::new() };
        let world = Arc::clone(&self.world);
        let ends = std::thread::spawn(move || {
            let codes = generations.end();
            world.finish();
            codes
        });
        self.world.clean_up();
        ends.join().unwrap_or_default()
    }
}
