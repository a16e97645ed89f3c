//! How much of a machine a task can have: AWS sells pairs of processor and memory.

use sandbox_core::{Result, SandboxError, SandboxResources};

/// Processor units, and the memory that goes with them: least, most and step, in MiB.
const SIZES: [(u32, u64, u64, u64); 7] = [
    (256, 512, 2048, 512),
    (512, 1024, 4096, 1024),
    (1024, 2048, 8192, 1024),
    (2048, 4096, 16_384, 1024),
    (4096, 8192, 30_720, 1024),
    (8192, 16_384, 61_440, 4096),
    (16_384, 32_768, 122_880, 8192),
];

/// Processor units of one core.
const UNITS: f64 = 1024.0;

/// The disk of a task when nothing is said, and what can be said, in GiB.
const DISK_DEFAULT_GIB: u64 = 20;
const DISK_GIB: std::ops::RangeInclusive<u64> = 21..=200;

/// What a task gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    /// Processor units, 1024 for a core.
    pub(crate) cpu: u32,
    pub(crate) memory_mib: u64,
    /// None: as much as every task has.
    pub(crate) disk_gib: Option<u64>,
}

impl Size {
    /// The smallest pair with at least so many cores and so much memory.
    ///
    /// # Errors
    /// `InvalidInput`, naming the field and the nearest pair, where no pair has that much of both.
    pub(crate) fn new(cores: f64, memory_mib: Option<u64>, cpu_field: &str, memory_field: &str) -> Result<Self> {
        let units = cores * UNITS;
        let fits = |(cpu, ..): &&(u32, u64, u64, u64)| f64::from(*cpu) >= units;
        let (largest, _, most, _) = SIZES[SIZES.len() - 1];
        let is_real = cores > 0.0;
        let Some((cpu, least, most_here, step)) = SIZES.iter().find(fits).copied().filter(|_| is_real) else {
            let text = format!("must be above 0 and at most {} cores, not {cores}", f64::from(largest) / UNITS);
            return Err(SandboxError::invalid_input(cpu_field, text));
        };
        let Some(wanted) = memory_mib else { return Ok(Self { cpu, memory_mib: least, disk_gib: None }) };
        let memory_mib = wanted.max(least).div_ceil(step) * step;
        if memory_mib <= most_here {
            return Ok(Self { cpu, memory_mib, disk_gib: None });
        }
        let with_room = SIZES.iter().find(|(_, least, most, step)| wanted.max(*least).div_ceil(*step) * step <= *most);
        let nearest = match with_room {
            Some((cpu, least, _, step)) => {
                let memory = wanted.max(*least).div_ceil(*step) * step;
                format!("nearest: {} cores with {memory} MiB", f64::from(*cpu) / UNITS)
            }
            None => format!("the most there is: {} cores with {most} MiB", f64::from(largest) / UNITS),
        };
        let text =
            format!("{} cores go with {least} to {most_here} MiB, not {wanted}; {nearest}", f64::from(cpu) / UNITS);
        Err(SandboxError::invalid_input(memory_field, text))
    }

    /// What a spec asks for, and where it says nothing the settings.
    ///
    /// # Errors
    /// `InvalidInput`, naming the field.
    pub(crate) fn of(resources: &SandboxResources, cpu: f64, memory_mib: Option<u64>) -> Result<Self> {
        let cores = resources.cpu.unwrap_or(cpu);
        // What the settings say goes with their own cores.
        let memory = resources.memory_mib.or(memory_mib.filter(|_| resources.cpu.is_none()));
        let mut size = match Self::new(cores, memory, "resources.cpu", "resources.memory_mib") {
            // Memory alone was asked for: cores that go with it.
            Err(_) if resources.cpu.is_none() && resources.memory_mib.is_some() => {
                let larger = SIZES.iter().filter(|(units, ..)| f64::from(*units) >= cores * UNITS);
                let tries = larger.map(|(units, ..)| f64::from(*units) / UNITS);
                let last = f64::from(SIZES[SIZES.len() - 1].0) / UNITS;
                let new = |cores| Self::new(cores, memory, "resources.cpu", "resources.memory_mib");
                tries.map(new).find(Result::is_ok).unwrap_or_else(|| new(last))?
            }
            size => size?,
        };
        size.disk_gib = match resources.disk_gib {
            None => None,
            Some(gib) if gib <= DISK_DEFAULT_GIB => None,
            Some(gib) if DISK_GIB.contains(&gib) => Some(gib),
            Some(gib) => {
                let text = format!("must be at most {} GiB, not {gib}", DISK_GIB.end());
                return Err(SandboxError::invalid_input("resources.disk_gib", text));
            }
        };
        Ok(size)
    }
}

#[cfg(test)]
mod tests {
    use sandbox_core::SandboxResources;

    use super::{SIZES, Size};

    fn size(cpu: Option<f64>, memory_mib: Option<u64>) -> Result<(u32, u64), String> {
        let resources = SandboxResources { cpu, memory_mib, ..SandboxResources::default() };
        Size::of(&resources, 1.0, None).map(|size| (size.cpu, size.memory_mib)).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_asked_for_is_rounded_up_to_the_next_pair() {
        for (cpu, memory, expected) in [
            (None, None, (1024, 2048)),
            (Some(0.1), None, (256, 512)),
            (Some(0.25), Some(513), (256, 1024)),
            (Some(0.3), Some(100), (512, 1024)),
            (Some(1.5), None, (2048, 4096)),
            (Some(1.0), Some(4500), (1024, 5120)),
            (Some(8.0), Some(16_385), (8192, 20_480)),
            (Some(16.0), Some(122_880), (16_384, 122_880)),
            // Memory alone brings the cores that go with it.
            (None, Some(9000), (2048, 9216)),
            (None, Some(100_000), (16_384, 106_496)),
        ] {
            assert_eq!(size(cpu, memory), Ok(expected), "{cpu:?} {memory:?}");
        }
    }

    #[test]
    fn what_no_pair_has_is_refused_with_the_nearest() {
        let error = size(Some(1.0), Some(9000)).unwrap_err();
        assert!(error.contains("2048 to 8192 MiB") && error.contains("nearest: 2 cores with 9216 MiB"), "{error}");
        let error = size(Some(17.0), None).unwrap_err();
        assert!(error.contains("resources.cpu") && error.contains("at most 16 cores"), "{error}");
        let error = size(None, Some(200_000)).unwrap_err();
        assert!(error.contains("16 cores with 122880 MiB"), "{error}");
        let resources = SandboxResources { disk_gib: Some(201), ..SandboxResources::default() };
        let error = Size::of(&resources, 1.0, None).unwrap_err();
        assert_eq!(error.field(), Some("resources.disk_gib"));
    }

    #[test]
    fn every_pair_is_its_own_rounding() {
        for (cpu, least, most, step) in SIZES {
            for memory in (least..=most).step_by(step as usize) {
                assert_eq!(size(Some(f64::from(cpu) / 1024.0), Some(memory)), Ok((cpu, memory)));
            }
        }
    }

    #[test]
    fn a_small_disk_is_what_every_task_has() {
        let disk = |gib| {
            let resources = SandboxResources { disk_gib: Some(gib), ..SandboxResources::default() };
            Size::of(&resources, 1.0, None).unwrap().disk_gib
        };
        assert_eq!((disk(1), disk(20), disk(21), disk(200)), (None, None, Some(21), Some(200)));
    }
}
