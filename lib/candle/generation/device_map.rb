# frozen_string_literal: true

module Candle
  # What `device_map:`, `gpu_layers:` and `gpu_memory:` of a language model ask for.
  #
  # @api private
  module DeviceMap
    module_function

    # @param map [Symbol, String, Hash, nil] `:auto`, or devices and their numbers of layers
    # @param layers [Integer, nil] how many layers go to the model's device
    # @param memory [Integer, String, nil] what `:auto` may use of it
    # @return [Hash] as the engine takes it
    # @raise [ArgumentError] for anything else, and for what contradicts itself
    def settings(map, layers, memory)
      raise ArgumentError, "give device_map: or gpu_layers:, not both" unless map.nil? || layers.nil?

      automatic = map.to_s == "auto"
      raise ArgumentError, "gpu_memory: goes with device_map: :auto" unless memory.nil? || automatic
      return { fit_layers: true, gpu_memory: Arguments.bytes(memory, "gpu_memory") } if automatic

      { device_map: counts(map), gpu_layers: layers && number(layers, "gpu_layers") }
    end

    # @return [Device, String, Symbol, nil] the device of what stands beside the layers, where none is named
    def first_device(map)
      map.to_hash.keys.first if Arguments.answers?(map, :to_hash)
    end

    def counts(map)
      return if map.nil?

      unless Arguments.answers?(map, :to_hash) && !map.to_hash.empty?
        raise ArgumentError, "device_map must be :auto or a Hash of devices and numbers of layers, " \
                             "not #{Arguments.shown(map)}"
      end

      map.to_hash.map { |device, count| [device.to_s, number(count, "device_map")] }
    end
    private_class_method :counts

    def number(value, name)
      return value if Integer === value && value.between?(0, 2**32)

      raise ArgumentError, "#{name} takes numbers of layers, not #{Arguments.shown(value)}"
    end
    private_class_method :number
  end
end
