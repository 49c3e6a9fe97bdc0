ringreduce_layer(reduce)
