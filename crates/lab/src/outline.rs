//! Description of an experiment, before it runs.

use pagewise_model::lab;

use crate::about::{ExperimentAbout, Parameters};

/// An experiment with its sizes, and nothing measured.
pub(crate) fn outline(
    about: &ExperimentAbout,
    parameters: &Parameters,
    rerun: String,
) -> lab::ExperimentRecord {
    let meaning = |name: &str| about.parameters.iter().find(|row| row.name == name);
    let rows = parameters.iter().map(|(name, value)| lab::ParameterValue {
        name: name.into(),
        value,
        meaning: meaning(name).map_or("", |row| row.meaning).into(),
    });
    let quantities = about.quantities.iter().map(|row| lab::ExperimentQuantity {
        name: row.name.into(),
        unit: row.unit,
        meaning: row.meaning.into(),
    });
    let arm = |name: &&'static str| lab::ExperimentArm {
        name: (*name).into(),
        ..lab::ExperimentArm::default()
    };
    lab::ExperimentRecord {
        name: about.name.into(),
        question: about.question.into(),
        expectation: about.expectation.into(),
        figures: about.figures.into(),
        parameters: rows.collect(),
        quantities: quantities.collect(),
        arms: about.arms.iter().map(arm).collect(),
        claims: Vec::new(),
        plots: Vec::new(),
        skipped: None,
        noise: None,
        took_ns: 0,
        rerun: rerun.into(),
        kernels: Vec::new(),
    }
}
