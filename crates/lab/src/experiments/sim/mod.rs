//! A model of the kernel's queues: first compared with this machine, then run for larger machines.

mod beside;
mod large;

use weir_balance::AcceptPolicy;
use weir_balance::model::World;

use crate::experiment::{Experiment, POLICIES};
use crate::finding::LabFinding;
use crate::lab::Lab;

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "sim",
    title: "A model of the kernel's queues",
    question: "What would 64 or 512 workers see? A model in virtual time answers: wait queues in the order \
               of registration, exclusive and plain wake-ups, sleepers only, accept queues, and the server's own \
               policies, line for line.",
    published: "Nothing: these machines are too large for most laboratories. The first tables set the model beside this machine, \
                so that one sees how far it may be believed.",
    run: |lab| study(lab, lab.size(&[12, 64, 512], &[12, 64])),
};

/// Compares the model with this machine, then runs it alone for these numbers of workers.
pub(crate) fn study(lab: &Lab, sizes: &[usize]) -> Result<LabFinding, String> {
    let mut finding = LabFinding::default();
    if lab.weir().is_ok() {
        beside::tables(lab, &mut finding)?;
    }
    large::tables(lab, sizes, &mut finding);
    large::explain(&mut finding);
    finding.remark(
        "How the kernel walks along its list of waiters (weir lab sim --explain tells more):",
    );
    finding.blocks(vec![crate::explain::wait_list_example()]);
    Ok(finding)
}

fn policies() -> impl Iterator<Item = (&'static str, AcceptPolicy)> {
    POLICIES.iter().filter_map(|(label, name)| Some((*label, AcceptPolicy::parse(name).ok()?)))
}

/// A quantile of the latency in milliseconds.
fn quantile(world: &World, share: f64) -> f64 {
    world.witness().quantile(share).as_secs_f64() * 1e3
}
