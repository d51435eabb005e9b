# frozen_string_literal: true

Candle::Native.complete(:Device)

module Candle
  # Where tensors live and models run.
  #
  # @example
  #   Candle::Device.cpu.to_s # => "cpu"
  class Device
    include Uncopyable

    class << self
      # @param name [String, Symbol, Device, nil]
      # @return [Device] the same as {.parse}
      def new(name = nil)
        parse(name)
      end

      # @return [Device]
      def cpu
        _open("cpu")
      end

      # @param index [Integer] which of several GPUs
      # @return [Device]
      # @raise [DeviceError] when there is no such GPU, with the reason
      def cuda(index = 0)
        gpu("cuda", index)
      end

      # @param index [Integer] which of several GPUs
      # @return [Device]
      # @raise [DeviceError] when there is no such GPU, with the reason
      def metal(index = 0)
        gpu("metal", index)
      end

      # @return [Device] Metal, else CUDA, else the CPU: the first that really opens
      def best
        _best
      end

      alias default best

      # GPUs are opened once to find out, and closed again unless they are in use.
      #
      # @return [Array<String>] the devices that really open on this machine
      def available_devices
        _available
      end

      # @param name [String, Symbol, Device, nil] such as `"cuda:1"`, `"metal"`, `:best`; nil is the best
      # @return [Device]
      # @raise [DeviceError] for an unknown name
      def parse(name)
        case name
        when String then _parse(TextInput.utf8(name, "device"))
        when nil, Symbol, Device then _parse(name)
        else raise DeviceError, "a device is named by a String or a Symbol, not by #{Arguments.shown(name)}"
        end
      end

      private

      def gpu(kind, index)
        _open("#{kind}:#{Integer(index)}")
      rescue EncodingError
        raise ArgumentError, "index must be an Integer, not #{Arguments.shown(index)}"
      end
    end

    # @!method index
    #   @return [Integer] which of several GPUs; 0 for the CPU
    # @!method to_s
    #   @return [String] the name that {Device.parse} takes, such as `"cpu"` or `"cuda:0"`

    # @return [Symbol] `:cpu`, `:cuda` or `:metal`
    def kind
      _kind.to_sym
    end

    # Waits until the device has done all that it was asked to do.
    # @return [self]
    def synchronize
      _synchronize
      self
    end

    # @return [Boolean] whether `other` is the same device
    def ==(other)
      Device === other && to_s == other.to_s
    end

    alias eql? ==

    # @return [Integer]
    def hash
      to_s.hash
    end

    # @return [String]
    def inspect
      "#<Candle::Device #{self}>"
    end

    private

    def marshal_instead
      "send its name, and read it with Device.parse"
    end

    _cuda_is_unused(Native.problem) if Native.problem
  end
end
