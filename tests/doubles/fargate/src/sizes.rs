//! The sizes that tasks on Fargate may have.

use serde_json::Value;

use crate::error::Refusal;

const GIB: u32 = 1024;

/// CPU units, and the first, last and step of the memory in MiB.
const SIZES: [(u32, u32, u32, u32); 7] = [
    (256, 512, 2 * GIB, 512),
    (512, GIB, 4 * GIB, GIB),
    (1024, 2 * GIB, 8 * GIB, GIB),
    (2048, 4 * GIB, 16 * GIB, GIB),
    (4096, 8 * GIB, 30 * GIB, GIB),
    (8192, 16 * GIB, 60 * GIB, 4 * GIB),
    (16384, 32 * GIB, 120 * GIB, 8 * GIB),
];

/// Scratch disks, in GiB.
const STORAGE: std::ops::RangeInclusive<u64> = 21..=200;

/// Whether there are tasks of this size.
pub(crate) fn is_size(cpu: u32, memory: u32) -> bool {
    let fits = |&(units, first, last, step): &(u32, u32, u32, u32)| {
        // The smallest has 512, 1024 and 2048 only.
        let is_step = || if units == 256 { memory.is_power_of_two() } else { (memory - first).is_multiple_of(step) };
        units == cpu && (first..=last).contains(&memory) && is_step()
    };
    SIZES.iter().any(fits)
}

/// Checks `cpu`, `memory` and `ephemeralStorage`; what is not there comes from `default`.
pub(crate) fn check(wanted: &Value, default: &Value, code: &str) -> Result<(), Refusal> {
    let number = |key: &str| {
        let value = if wanted[key].is_null() { &default[key] } else { &wanted[key] };
        value.as_str().and_then(|text| text.parse::<u32>().ok())
    };
    let (Some(cpu), Some(memory)) = (number("cpu"), number("memory")) else {
        return Err(Refusal::new(code, "Fargate requires task definition to have valid cpu and memory values."));
    };
    if !is_size(cpu, memory) {
        let message = format!("No Fargate configuration exists for given values: {cpu} CPU, {memory} memory.");
        return Err(Refusal::new(code, message));
    }
    match wanted["ephemeralStorage"]["sizeInGiB"].as_u64() {
        Some(size) if !STORAGE.contains(&size) => {
            Err(Refusal::new(code, format!("Ephemeral storage size must be between 21 and 200 GiB, not {size}.")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::is_size;

    #[test]
    fn the_pairs_are_those_of_the_service() {
        for (cpu, memory) in [(256, 512), (256, 2048), (1024, 2048), (4096, 30720), (8192, 20480), (16384, 122_880)] {
            assert!(is_size(cpu, memory), "{cpu} {memory}");
        }
        for (cpu, memory) in [(256, 1536), (256, 4096), (1024, 4500), (8192, 17408), (300, 512), (16384, 16384)] {
            assert!(!is_size(cpu, memory), "{cpu} {memory}");
        }
    }
}
