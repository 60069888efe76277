"""Plans a training step: how backbone and head are partitioned, together with what is remade.

problem     what is to be planned: network, batch, classes, cluster, memory
layers      the backbone's segments as memopt's layers, traced under fake tensors
head        ways to run the classification layer, as options of the chain's last stage
step        the chain of both, the search, the strategies to compare with
fit         the largest batch, and the most identities, that fit
plan_file   plan.json: written by `facetrain plan`, run by `facetrain train --plan`
page        the pictures of it
"""
