"""The files of rooms that tests still import: each is an inside, or a door that is missing.

tests/test_rooms.py compares. The list only ever shrinks: a new test goes through a room's door.
"""

# Files that are doors themselves: they import torch or a framework, which their rooms must not.
ENTRANCES = ("experiment.subject", "experiment.recording", "integrations.")

INSIDE = {
    "commandline": ("cli.terminal",),
    "stores": ("sweep.keys",),
    "test_analysis": ("dual.decomposition",),
    "test_budget": (
        "cli.terminal",
        "measures.registry",
    ),
    "test_coverage": (
        "curvature.probes",
        "curvature.stochastic_diagonal",
        "measures.pac_bayes_optimised",
        "measures.shared.spectrum",
        "measures.shared.standard_error",
    ),
    "test_data": ("data.sampling",),
    "test_demo": ("training.settings",),
    "test_derivatives": ("curvature.trials",),
    "test_descent": (
        "training.compiled",
        "training.descent",
    ),
    "test_diagonals": ("curvature.diagonals",),
    "test_docs": ("measures.registry",),
    "test_duality": (
        "dual.moments",
        "dual.shifts",
    ),
    "test_executors": ("sweep.executors",),
    "test_expansion": (
        "dual.expansion",
        "dual.flatness",
    ),
    "test_hostile": (
        "probe.records",
        "sweep.keys",
        "sweep.trial",
        "training.compiled",
    ),
    "test_keys": (
        "sweep.perform",
        "sweep.source",
    ),
    "test_landscape": (
        "analysis.scenery",
        "landscape.directions",
        "landscape.evaluation",
        "landscape.picture",
        "landscape.points",
        "landscape.span",
    ),
    "test_layer_curvature": ("curvature.graph",),
    "test_measures": (
        "measures.condition_number",
        "measures.shared.spectrum",
        "measures.stressed",
    ),
    "test_measures_bounds": (
        "measures.pac_bayes_magnitude",
        "measures.pac_bayes_optimised",
        "measures.shared.balancing",
        "measures.shared.noisy_weights",
    ),
    "test_measures_norms": (
        "measures.shared.layer_spectra",
        "measures.sharing",
    ),
    "test_measures_perturbation": (
        "measures.local_entropy",
        "measures.shared.ascent",
        "measures.shared.average_rise",
        "measures.shared.box_maximum",
        "measures.shared.neighbourhood",
    ),
    "test_operators": ("curvature.second_derivatives",),
    "test_output_dual": (
        "dual.least_norm",
        "dual.shifts",
    ),
    "test_output_dual_studies": ("sweep.plan",),
    "test_packaging": ("cli.others",),
    "test_paths": (
        "landscape.renormalisation",
        "landscape.units",
    ),
    "test_planning": (
        "measures.planning",
        "measures.prices",
        "measures.sharing",
    ),
    "test_probe": (
        "probe.critical_step",
        "probe.pace",
    ),
    "test_probes": (
        "curvature.diagonals",
        "curvature.probes",
    ),
    "test_quadrature": ("curvature.quadrature",),
    "test_ray": (
        "measures.shared.neighbourhood",
        "measures.shared.ray",
    ),
    "test_report": (
        "report.mathml",
        "report.numbers",
        "report.words",
    ),
    "test_sentences": (
        "measures.planning",
        "report.figures",
        "report.words",
    ),
    "test_sharded": ("curvature.xtrace",),
    "test_shared_jacobians": (
        "curvature.probes",
        "measures.shared.noise_variances",
        "measures.shared.sample_gradients",
    ),
    "test_shifts": ("dual.shifts",),
    "test_store": ("sweep.keys",),
    "test_store_crashes": ("sweep.keys",),
    "test_studies": ("sweep.plan",),
    "test_studies_keys": ("sweep.source",),
    "test_subsets": (
        "measures.planning",
        "measures.sharing",
        "measures.subsets",
    ),
    "test_sweep": (
        "sweep.keys",
        "sweep.perform",
        "sweep.plan",
        "sweep.source",
    ),
    "test_tape": (
        "curvature.block_products",
        "curvature.tangents",
    ),
    "test_training": (
        "training.settings",
        "training.stack",
    ),
    "test_trials": (
        "sweep.source",
        "sweep.trial",
    ),
    "test_xtrace": (
        "curvature.sketch",
        "curvature.stochastic_diagonal",
        "curvature.xtrace",
    ),
}
