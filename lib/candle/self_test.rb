# frozen_string_literal: true

module Candle
  # Long work, panics and figures on demand, so that the promises about interrupts, errors and memory can be shown on
  # any installation.
  #
  # @api private
  module SelfTest
    # @!method self.work(seconds)
    #   Computes for a while without the GVL, as every call into a model does.
    #   @param seconds [Float]
    #   @return [Integer]

    # @!method self.panic_holding_gvl(message)
    #   @param message [String]
    #   @raise [InternalError] always

    # @!method self.panic_without_gvl(message)
    #   @param message [String]
    #   @raise [InternalError] always

    # @!method self.kept_bytes
    #   @return [Integer] how many freed bytes the allocator keeps for the next tensors
  end
end
