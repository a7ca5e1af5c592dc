"""Are flat networks more robust? Input noise, shifted images, calibration, federated averaging."""
