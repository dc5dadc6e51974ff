//! Plans steps: one ahead of the one that runs, so that a worker finds the next one when it is done, and as late as that
//! allows. What a step of a second begins with is fixed when it is planned: a request that comes while a step runs would have
//! to wait for the one behind it too, had that been planned at once.

use std::time::{Duration, Instant};

use super::Driver;
use crate::results::Garbage;

/// A step is planned so long before the one that runs is foreseen to be done, and as much earlier as it takes to the worker and back: many
/// times what planning takes, so that neither a busy machine nor a step that is a little quicker than foreseen has the worker wait.
const LEAD: Duration = Duration::from_millis(4);

impl Driver {
    /// Returns whether a step was planned.
    pub(super) fn plan(&mut self, index: usize) -> bool {
        let mut has_planned = false;
        self.groups[index].plan_at = None;
        while self.groups[index].has_free_frame() {
            if let Some(at) = self.early(index) {
                self.groups[index].plan_at = Some(at);
                break;
            }
            let (id, now) = (self.groups[index].id, self.now());
            let Some(core) = self.core.as_mut() else { break };
            let Some(plan) = core.plan(id, now) else { break };
            has_planned = true;
            let journal = &self.journal;
            if let Err(error) = self.groups[index].submit(&plan, |request| journal.embeds(request)) {
                return self.distrust(index, &Garbage::Frame(error));
            }
            self.ask_for_masks(index);
        }
        if has_planned {
            self.tell_events();
        }
        has_planned
    }

    /// When the next step is to be planned, if it is too early now.
    fn early(&self, index: usize) -> Option<Instant> {
        let group = &self.groups[index];
        let begun = group.step_begun()?;
        let foreseen = Duration::from_micros(self.core.as_ref()?.foreseen_us(group.id));
        let at = begun.checked_add(foreseen.checked_sub(LEAD + group.trip())?)?;
        (at > Instant::now()).then_some(at)
    }

    /// Of those that are due: behind what is committed. Nobody waits for a row whose request has left.
    pub(super) fn ask_for_masks(&mut self, index: usize) {
        let Self { groups, journal, masks, .. } = self;
        groups[index].masks_due(|request, place| {
            match request.and_then(|request| Some((request, journal.tracked(request)?))) {
                Some((request, (tracked, drawn))) => masks.ask(request, tracked, drawn, place),
                None => place.0.pass_over(place.1, place.2),
            }
        });
    }
}
