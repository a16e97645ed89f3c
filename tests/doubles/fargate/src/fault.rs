//! Scripted faults: what goes wrong, where, how often; and the count of those that did.

use std::{collections::BTreeMap, time::Duration};

use serde_json::Value;

use crate::error::Refusal;

/// Something that goes wrong once, or [so often](Fault::times).
#[derive(Clone, Debug)]
pub struct Fault {
    name: &'static str,
    place: String,
    skip: u32,
    times: u32,
    only_spot: bool,
    pub(crate) kind: Kind,
}

/// How it goes wrong.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// Of a request: this answer.
    Refuse(Refusal),
    /// Of RunTask: no task, and this reason.
    Failures(&'static str),
    /// Of DescribeTasks: nothing is known of any of them.
    Missing,
    /// Of a request: nobody looks at it, and the connection ends.
    HangUp,
    /// Of a request: it is done, and the connection ends.
    LoseAnswer,
    /// Of a request: it waits first.
    Late(Duration),
    /// Of a task: its network cannot be made.
    NoNetwork,
    /// Of a task: its images cannot be pulled.
    NoImage,
    /// Of a task: it pulls its images for so long.
    SlowPull(Duration),
}

/// Where the faults of tasks happen, not of requests.
pub(crate) const NETWORK: &str = "task network";
/// The same for images.
pub(crate) const PULL: &str = "task images";

impl Fault {
    fn new(name: &'static str, place: &str, kind: Kind) -> Self {
        Self { name, place: place.to_owned(), skip: 0, times: 1, only_spot: false, kind }
    }

    /// `capacity`: RunTask starts nothing, for want of capacity.
    pub fn capacity() -> Self {
        let reason = "Capacity is unavailable at this time. Please try again later or in a different availability zone";
        Self::new("capacity", "RunTask", Kind::Failures(reason))
    }

    /// `network interfaces`: RunTask starts nothing, for want of network interfaces in the subnet.
    pub fn no_interfaces() -> Self {
        Self::new("network interfaces", "RunTask", Kind::Failures("RESOURCE:ENI"))
    }

    /// `throttled`: an operation is refused by its code.
    pub fn throttled(operation: &str) -> Self {
        let refusal = Refusal::new("ThrottlingException", "Rate exceeded");
        Self::new("throttled", operation, Kind::Refuse(refusal))
    }

    /// `throttled by message`: the same, but only the message says so.
    pub fn throttled_by_message(operation: &str) -> Self {
        let message = "Unable to complete the request. Rate exceeded (ErrorCode: Throttling)";
        Self::new("throttled by message", operation, Kind::Refuse(Refusal::parameter(message)))
    }

    /// `concurrent revisions`: RegisterTaskDefinition is refused, as others register the same family.
    pub fn concurrent_revisions() -> Self {
        let message = "Too many concurrent attempts to create a new revision of the specified family.";
        let refusal = Refusal::new("ClientException", message);
        Self::new("concurrent revisions", "RegisterTaskDefinition", Kind::Refuse(refusal))
    }

    /// `missing`: DescribeTasks knows none of the tasks that it is asked for.
    pub fn missing() -> Self {
        Self::new("missing", "DescribeTasks", Kind::Missing)
    }

    /// `hung up`: the connection ends before the request is looked at.
    pub fn hung_up(operation: &str) -> Self {
        Self::new("hung up", operation, Kind::HangUp)
    }

    /// `lost answer`: the request is done, and the connection ends without an answer.
    pub fn lost_answer(operation: &str) -> Self {
        Self::new("lost answer", operation, Kind::LoseAnswer)
    }

    /// `late`: the request is looked at so much later.
    pub fn late(operation: &str, by: Duration) -> Self {
        Self::new("late", operation, Kind::Late(by))
    }

    /// `refused`: an operation is refused so.
    pub fn refused(operation: &str, status: u16, code: &str, message: &str) -> Self {
        let refusal = Refusal { status, code: code.to_owned(), message: message.to_owned() };
        Self::new("refused", operation, Kind::Refuse(refusal))
    }

    /// `no network`: the next task is accepted, and stops as its network interface cannot be made.
    pub fn no_network() -> Self {
        Self::new("no network", NETWORK, Kind::NoNetwork)
    }

    /// `no image`: the next task is accepted, and stops as the registry gives it no images for now. An image that is not
    /// one of the double's is never found, without a fault.
    pub fn no_image() -> Self {
        Self::new("no image", PULL, Kind::NoImage)
    }

    /// `slow pull`: the next task takes so much longer to pull its images.
    pub fn slow_pull(by: Duration) -> Self {
        Self::new("slow pull", PULL, Kind::SlowPull(by))
    }

    /// So often, one after the other.
    pub fn times(mut self, times: u32) -> Self {
        self.times = times;
        self
    }

    /// After so many of these requests, or tasks, that are spared.
    pub fn after(mut self, spared: u32) -> Self {
        self.skip = spared;
        self
    }

    /// Only of RunTask that asks for `FARGATE_SPOT`.
    pub fn only_spot(mut self) -> Self {
        self.only_spot = true;
        self
    }

    fn hits(&self, place: &str, request: &Value) -> bool {
        let strategies = request["capacityProviderStrategy"].as_array();
        let is_spot = || strategies.is_some_and(|all| all.iter().any(|one| one["capacityProvider"] == "FARGATE_SPOT"));
        self.place == place && (!self.only_spot || is_spot())
    }
}

/// The faults that are still to come, and how many there were of each name.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    coming: Vec<Fault>,
    happened: BTreeMap<&'static str, u32>,
}

impl Faults {
    pub(crate) fn add(&mut self, fault: Fault) {
        if fault.times > 0 {
            self.coming.push(fault);
        }
    }

    /// What goes wrong here and now, if anything does.
    pub(crate) fn hit(&mut self, place: &str, request: &Value) -> Option<Kind> {
        let index = self.coming.iter().position(|fault| fault.hits(place, request))?;
        let fault = &mut self.coming[index];
        if fault.skip > 0 {
            fault.skip -= 1;
            return None;
        }
        fault.times -= 1;
        let (name, kind) = (fault.name, fault.kind.clone());
        if fault.times == 0 {
            self.coming.remove(index);
        }
        self.count(name);
        Some(kind)
    }

    pub(crate) fn count(&mut self, name: &'static str) {
        *self.happened.entry(name).or_default() += 1;
    }

    pub(crate) fn happened(&self, name: &str) -> u32 {
        self.happened.get(name).copied().unwrap_or_default()
    }

    pub(crate) fn left(&self) -> u32 {
        self.coming.iter().map(|fault| fault.times).sum()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Fault, Faults};

    #[test]
    fn a_fault_hits_its_place_as_often_as_it_says_and_is_counted() {
        let mut faults = Faults::default();
        faults.add(Fault::capacity().after(1).times(2));
        let mut hit = |place| faults.hit(place, &Value::Null).is_some();
        let seen = ["RunTask", "StopTask", "RunTask", "RunTask", "RunTask"].map(&mut hit);
        assert_eq!(seen, [false, false, true, true, false]);
        assert_eq!((faults.happened("capacity"), faults.left()), (2, 0));
    }

    #[test]
    fn a_fault_of_spot_spares_the_others() {
        let mut faults = Faults::default();
        faults.add(Fault::capacity().only_spot());
        assert!(faults.hit("RunTask", &json!({"launchType": "FARGATE"})).is_none());
        let spot = json!({"capacityProviderStrategy": [{"capacityProvider": "FARGATE_SPOT", "weight": 1}]});
        assert!(faults.hit("RunTask", &spot).is_some());
    }
}
