"""ddptrace where people work: a file for each library, which imports that library and nothing else.

lightning, transformers, accelerate   record a training from a callback or a tracker
tensorboard, mlflow, wandb            log the summary of a run: `summary` has the numbers
pytest                                a fixture that fails a test if a step has become longer
"""
